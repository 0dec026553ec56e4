"""Which programs an engine's process runs on its logits itself. The server runs the others."""

from __future__ import annotations

import functools
import importlib
import os
from typing import TYPE_CHECKING, Literal, get_args

import orjson

from logitport.errors import InvalidArgument, PayloadError
from logitport.payload import Payload, Signature
from logitport.payload.signing import check_not_expired, read_public_keys, verify

if TYPE_CHECKING:
    from collections.abc import Callable

VARIABLE, KEYS_VARIABLE = "LOGITPORT_PROGRAMS", "LOGITPORT_PROGRAM_KEYS"

# Not imported as a module of the SDK would be: the SDK must not depend on it.
_BUILTINS = "logitport_builtins"

# All programs that the server's callers may name; signed ones, built-in ones and the client's own; none.
Mode = Literal["all", "trusted", "off"]


class LeftToServer(Exception):
    """This process does not run a program itself: the server is to do it."""


class ProgramTrust:
    """The choice of the engine's operator.

    Args:
        mode: which programs run here; None for LOGITPORT_PROGRAMS, by default "all".
        is_own: whether this client has registered the processor with this digest.

    Attributes:
        runs_programs: whether any program runs here.

    Raises:
        InvalidArgument: the mode is unknown, or the folder LOGITPORT_PROGRAM_KEYS has a file *.pub that is no key.
    """

    def __init__(self, mode: Mode | None = None, is_own: Callable[[str], bool] = lambda _: False) -> None:
        where = "programs"
        chosen: str | None = mode
        if chosen is None:
            where, chosen = VARIABLE, os.environ.get(VARIABLE) or "all"
        if chosen not in get_args(Mode):
            raise InvalidArgument(f"{where} is {chosen!r}; write all, trusted or off")
        self.runs_programs = chosen != "off"
        self._trusts_all = chosen == "all"
        self._is_own = is_own
        folder = os.environ.get(KEYS_VARIABLE)
        self._keys = read_public_keys(folder) if folder and chosen == "trusted" else {}

    def check(self, digest: str, data: bytes, signature: bytes) -> None:
        """Raise LeftToServer unless this process may run the program.

        Args:
            digest: of the program.
            data: its canonical bytes.
            signature: the JSON object of its signature; empty for an unsigned program.
        """
        trusted = self._trusts_all or self._is_own(digest) or self._is_signed(digest, data, signature)
        if not trusted and digest not in _builtin_digests():
            raise LeftToServer(digest)

    def _is_signed(self, digest: str, data: bytes, signature: bytes) -> bool:
        try:
            signed = Signature.from_json(orjson.loads(signature))
            key = self._keys.get(signed.key)
            if key is None:
                return False
            check_not_expired(signed)
            verify(Payload(data, digest, signature=signed, is_program=True), key)
        except (orjson.JSONDecodeError, PayloadError):
            return False
        return True


@functools.cache
def _builtin_digests() -> frozenset[str]:
    """The built-in programs that are installed here."""
    try:
        module = importlib.import_module(_BUILTINS)
    except ImportError:
        return frozenset()
    return frozenset(program.digest for program in module.BUILTIN_PROGRAMS.values())
