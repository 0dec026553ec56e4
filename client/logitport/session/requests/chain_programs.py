"""The programs of a request that the engine runs: fetched from the server, verified, and bound to its parameters."""

from __future__ import annotations

import hashlib
import logging
import sys
import threading
from collections import OrderedDict
from itertools import zip_longest
from typing import TYPE_CHECKING

import orjson

from logitport.errors import InvalidArgument, LimitExceeded, LogitportError
from logitport.session.handle import ProgramCall
from logitport.session.requests.program_trust import LeftToServer
from logitport.system.bounded import BoundedTable
from logitport_programs.cost import NUMPY, TORCH, check_cost
from logitport_programs.parameters import check_params
from logitport_programs.program import Program
from logitport_programs.verifier import verify

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from logitport.session.handle import Handle
    from logitport.session.requests.program_trust import ProgramTrust
    from logitport_programs.verifier import Verified
    from logitport_proto import processing_pb2

    # Requests programs by their digests.
    Fetch = Callable[[Sequence[str]], processing_pb2.Programs]

logger = logging.getLogger(__name__)

# Of verified programs that are kept for later requests. A program has 4 MiB at most, most have 1 kB.
_MAX_KEPT = 64
# Of the programs of all requests of a session, in the worst case: all requests of an engine wait for a step. A server
# permits code as much time by default.
_MAX_STEP_MS = 2000.0
# Of digests of programs that take too long here.
_MAX_EXPENSIVE = 1024


class ChainPrograms:
    """Fetches and verifies programs, each once, and binds them to requests.

    Args:
        vocab_size: width of the logits.
        trust: which programs this process runs.
        with_torch: whether they run on torch; otherwise the numpy interpreter runs them.
        rows: the most rows of a request in one step.
    """

    def __init__(self, vocab_size: int, trust: ProgramTrust, *, with_torch: bool, rows: int = 1) -> None:
        self._vocab_size = vocab_size
        self._rows = rows
        self._trust = trust
        self._with_torch = with_torch
        self._verified: OrderedDict[str, tuple[Verified, float]] = OrderedDict()
        # Programs that take too long here, by digest: they are not fetched for every request.
        self._expensive: BoundedTable[str, None] = BoundedTable(_MAX_EXPENSIVE)

    def prepare(self) -> threading.Thread | None:
        """Begin to import the runtime, which a first program needs, in a thread.

        Returns:
            The thread; None if no program runs here, or none on torch.
        """
        if not self._trust.runs_programs or not self._with_torch or "torch" not in sys.modules:
            return None
        # Not a daemon: that could end in the middle of an import.
        thread = threading.Thread(target=_import_runtime, name="logitport-programs")
        thread.start()
        return thread

    def bind(
        self, handle: Handle, chain: processing_pb2.AdmittedChain, fetch: Fetch, others: Iterable[Handle] = ()
    ) -> None:
        """Set the programs of a request that the server has admitted with this chain.

        Args:
            handle: the request.
            chain: its processors and programs.
            fetch: requests programs from the server.
            others: the requests of the session, this one included or not.

        Raises:
            LeftToServer: the server is to run the programs of this request.
            InvalidArgument, LimitExceeded: a program is refused.
            InvalidArgument: a program's parameters are refused.
            LogitportError: the server's reply violates the contract.
        """
        if not any(chain.programs):
            handle.programs = ()
            return
        if len(chain.programs) != len(chain.processors) or len(chain.programs) != len(handle.params):
            raise LogitportError(
                f"the server reported {len(chain.programs)} programs for a chain of {len(handle.params)} processors"
            )
        self._fetch_missing(list(dict.fromkeys(filter(None, chain.programs))), fetch)
        calls = []
        for digest, processor, params in zip(chain.programs, chain.processors, handle.params, strict=True):
            if digest:
                verified, longest_ms = self._verified[digest]
                values = check_params(verified.program.parameters, orjson.loads(params) if params else {})
                calls.append(ProgramCall(verified, values, longest_ms, processor))
        needed = self._rows * sum(call.milliseconds for call in calls)
        used = sum(call.milliseconds for other in others if other is not handle for call in other.programs) * self._rows
        if used + needed > _MAX_STEP_MS:
            logger.warning(
                "the server is to run the programs of request %r: in the worst case they take %.3g ms, and a step "
                "of this session %.3g ms; the limit is %g ms",
                handle.request_id,
                needed,
                used + needed,
                _MAX_STEP_MS,
            )
            raise LeftToServer(calls[0].verified.program.digest)
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
            raise LogitportError(f"the server sent {len(received.programs)} programs instead of {len(missing)}")
        for digest, data, signature in zip_longest(missing, received.programs, received.signatures[: len(missing)]):
            if hashlib.sha256(data).hexdigest() != digest:
                raise InvalidArgument(f"the server sent a program with another digest than {digest!r:.100}")
            self._trust.check(digest, data, signature or b"")
            verified = verify(Program.from_bytes(data))
            verified.check_width(self._vocab_size)
            self._verified[digest] = verified, self._check_cost(verified)

    def _check_cost(self, verified: Verified) -> float:
        """Leave programs that may take long here to the server, which has a limit of its own.

        Returns:
            The longest time for a row, in milliseconds.
        """
        try:
            return check_cost(verified, self._vocab_size, priced=TORCH if self._with_torch else NUMPY)
        except LimitExceeded as error:
            logger.warning("the server is to run a program: %s", error.message)
            self._expensive[verified.program.digest] = None
            raise LeftToServer(verified.program.digest) from error


def _import_runtime() -> None:
    try:
        from logitport_programs.runtime import program_runner  # noqa: F401
    except Exception as error:  # noqa: BLE001 - the first program raises it again
        logger.debug("the runtime of programs could not be imported: %r", error)
