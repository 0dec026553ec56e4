"""The checks of a payload before any use of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logitport import payload
from logitport.errors import LimitExceeded, PayloadError

if TYPE_CHECKING:
    from collections.abc import Callable

    from logitport.payload import Payload
    from logitport_server.registry.known_keys import KnownKeys

# In the text of every program, unless its writer escapes letters, which ours does not.
_PROGRAM_KEY = '"program"'


class PayloadPolicy:
    """The operator's rules for accepting payloads.

    Args:
        allow_shipped: whether code is accepted.
        allow_programs: whether programs are accepted.
        max_bytes: maximum length of the string, in characters.
        trusted_keys: one of these keys must have signed the payload; None to accept unsigned payloads, too.
    """

    def __init__(
        self,
        *,
        allow_shipped: bool,
        max_bytes: int,
        allow_programs: bool = True,
        trusted_keys: KnownKeys | None = None,
    ) -> None:
        self._allow_shipped = allow_shipped
        self._allow_programs = allow_programs
        self._max_bytes = max_bytes
        self._trusted_keys = trusted_keys

    def accept(self, serialized: str, name: str = "") -> Payload:
        """Check and parse a payload. Does not unpickle, and does not verify a program.

        Args:
            serialized: the payload.
            name: name to register it under, or "".

        Raises:
            PayloadError, LimitExceeded: the first check that fails.
        """
        return self._accept(serialized, name, payload.parse)

    def accept_stored(self, serialized: str) -> Payload:
        """Check the payload of a registration, as `accept`. Does not read its pickle: it was read at registration."""
        return self._accept(serialized, "", payload.unwrap)

    def check(self, shipped: Payload, size: int, name: str) -> None:
        """Check a payload that was parsed by a process that is not trusted.

        Args:
            shipped: the payload.
            size: length of its string, in characters.
            name: name to register it under, or "".

        Raises:
            PayloadError, LimitExceeded: its kind, size or signature is refused.
        """
        self._check_kind(shipped.is_program)
        self._check_size(size)
        if self._trusted_keys is not None:
            self._trusted_keys.check(shipped, name)

    def check_current(self, shipped: Payload, name: str = "") -> None:
        """Raise PayloadError if the signature of a payload accepted earlier is not valid now, or for this name."""
        if self._trusted_keys is not None:
            self._trusted_keys.check_current(shipped, name)

    def _accept(self, serialized: str, name: str, parse: Callable[[str, Callable[[bool], object]], Payload]) -> Payload:
        if not (self._allow_shipped or self._allow_programs):
            raise PayloadError(  # and nothing is parsed
                "this server accepts neither shipped processors nor programs; its operator can allow shipped "
                "processors with --enable-custom-logit-processor, and programs by leaving out --no-programs",
                code=PayloadError.NOT_ALLOWED,
            )
        if not self._allow_shipped and _PROGRAM_KEY not in serialized:
            self._check_kind(False)  # code is not parsed, either
        self._check_size(len(serialized))
        shipped = parse(serialized, self._check_kind)
        if self._trusted_keys is not None:
            self._trusted_keys.check(shipped, name)
        return shipped

    def _check_size(self, size: int) -> None:
        if size > self._max_bytes:
            raise LimitExceeded(
                f"a payload of {size} characters is over the server's limit of {self._max_bytes}: make "
                "the class smaller, for example without large constants, or raise --max-payload-bytes"
            )

    def _check_kind(self, is_program: bool) -> None:
        if is_program and not self._allow_programs:
            raise PayloadError(
                "this server does not accept programs (--no-programs); ask its operator to allow them, or use a "
                "processor that the server has",
                code=PayloadError.NOT_ALLOWED,
            )
        if not is_program and not self._allow_shipped:
            also = "; it accepts programs: logitport_programs.capture makes one" if self._allow_programs else ""
            raise PayloadError(
                "this server does not accept shipped processors; its operator can allow them with "
                f"--enable-custom-logit-processor{also}",
                code=PayloadError.NOT_ALLOWED,
            )
