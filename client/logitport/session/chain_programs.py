"""The programs of a request that the engine runs: fetched from the server, verified, and bound to its parameters."""

from __future__ import annotations

import hashlib
import logging
from collections import OrderedDict
from itertools import zip_longest
from typing import TYPE_CHECKING

import orjson

from logitport.errors import InternalError, InvalidProgram, LimitExceeded
from logitport.programs.cost.limits import check_cost
from logitport.programs.cost.prices import prices
from logitport.programs.parameters import check_params
from logitport.programs.program import Program
from logitport.programs.verifier import verify
from logitport.session.program_call import ProgramCall
from logitport.session.program_trust import LIMIT_VARIABLE, LeftToServer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from logitport.programs.verifier import Verified
    from logitport.session.frames import Handle
    from logitport.session.program_trust import ProgramTrust
    from logitport_proto import processing_pb2

    # Requests programs by their digests.
    Fetch = Callable[[Sequence[str]], processing_pb2.Programs]

logger = logging.getLogger(__name__)

# Of verified programs that are kept for later requests. A program has 4 MiB at most, most have 1 kB.
_MAX_KEPT = 64
# Of digests of programs that take too long here.
_MAX_EXPENSIVE = 1024


class ChainPrograms:
    """Fetches and verifies programs, each once, and binds them to requests.

    Args:
        vocab_size: width of the logits.
        trust: which programs this process runs.
        device: where they run, for `logitport.programs.cost.prices`.
    """

    def __init__(self, vocab_size: int, trust: ProgramTrust, device: str) -> None:
        self._vocab_size = vocab_size
        self._trust = trust
        self._device = device
        self._verified: OrderedDict[str, Verified] = OrderedDict()
        # Programs that take too long here, by digest: they are not fetched for every request.
        self._expensive: OrderedDict[str, None] = OrderedDict()

    def bind(self, handle: Handle, chain: processing_pb2.AdmittedChain, fetch: Fetch) -> None:
        """Set the programs of a request that the server has admitted with this chain.

        Args:
            handle: the request.
            chain: its processors and programs.
            fetch: requests programs from the server.

        Raises:
            LeftToServer: the server is to run the programs of this request.
            InvalidProgram, LimitExceeded: a program is refused.
            InvalidParams: a program's parameters are refused.
            InternalError: the server's reply violates the contract.
        """
        if not any(chain.programs):
            handle.programs = ()
            return
        if len(chain.programs) != len(chain.processors) or len(chain.programs) != len(handle.params):
            raise InternalError(
                f"the server reported {len(chain.programs)} programs for a chain of {len(handle.params)} processors"
            )
        self._fetch_missing(list(dict.fromkeys(filter(None, chain.programs))), fetch)
        calls = []
        for digest, processor, params in zip(chain.programs, chain.processors, handle.params, strict=True):
            if digest:
                verified = self._verified[digest]
                values = check_params(verified.program.parameters, orjson.loads(params) if params else {})
                calls.append(ProgramCall(verified, values, processor))
        handle.programs = tuple(calls)
        while len(self._verified) > _MAX_KEPT:  # requests keep theirs
            self._verified.popitem(last=False)

    def _fetch_missing(self, digests: Sequence[str], fetch: Fetch) -> None:
        missing = []
        for digest in digests:
            if digest in self._expensive:
                raise LeftToServer(digest)
            if digest in self._verified:
                self._verified.move_to_end(digest)
            else:
                missing.append(digest)
        if not missing:
            return
        try:
            received = fetch(missing)
        except LimitExceeded:  # they do not fit into one reply
            if len(missing) == 1:
                raise
            middle = len(missing) // 2
            self._fetch_missing(missing[:middle], fetch)
            self._fetch_missing(missing[middle:], fetch)
            return
        if len(received.programs) != len(missing):
            raise InternalError(f"the server sent {len(received.programs)} programs instead of {len(missing)}")
        for digest, data, signature in zip_longest(missing, received.programs, received.signatures[: len(missing)]):
            if hashlib.sha256(data).hexdigest() != digest:
                raise InvalidProgram(f"the server sent a program with another digest than {digest!r:.100}")
            self._trust.check(digest, data, signature or b"")
            verified = verify(Program.from_bytes(data))
            verified.check_width(self._vocab_size)
            self._check_cost(verified)
            self._verified[digest] = verified

    def _check_cost(self, verified: Verified) -> None:
        """Leave programs that may take long here to the server, which has a limit of its own."""
        try:
            check_cost(verified, self._vocab_size, self._trust.limit_ms, priced=prices(self._device))
        except LimitExceeded as error:
            logger.warning("the server is to run a program: %s (%s)", error.message, LIMIT_VARIABLE)
            self._expensive[verified.program.digest] = None
            if len(self._expensive) > _MAX_EXPENSIVE:
                self._expensive.popitem(last=False)
            raise LeftToServer(verified.program.digest) from error
