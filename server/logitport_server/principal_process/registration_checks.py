"""Checks what the principal registers, and states the result to the front door as plain data."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from logitport_proto import registry_pb2
from logitport_server.principal_process.process_messages import Checked
from logitport_session.processor_sources.names import check_name
from logitport_session.processor_sources.programs import load_program
from logitport_session.resources.parsing import parse, position_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from logitport.payload import Payload
    from logitport_server.registry.policy import PayloadPolicy


class Checks:
    """Checks payloads before their registration. Does not unpickle. Thread-safe.

    Args:
        policy: the operator's rules for payloads.
        check_python: raises PayloadError if no configured Python can run a payload.
    """

    def __init__(self, policy: PayloadPolicy, check_python: Callable[[Payload], None]) -> None:
        self._policy = policy
        self._check_python = check_python

    def check_message(self, data: bytes) -> bytes:
        """Check a serialized RegisterRequest. Returns a serialized `Checked`. Raises the errors of `check`."""
        message = parse(registry_pb2.RegisterRequest, data)
        shipped = self.check(message.payload, message.name)
        start, end = position_of(registry_pb2.RegisterRequest.PAYLOAD_FIELD_NUMBER, data)
        return msgspec.msgpack.encode(
            Checked(
                message.name,
                message.replace,
                message.shared,
                start,
                end,
                shipped.data,
                shipped.is_program,
                shipped.labels,
            )
        )

    def check(self, serialized: str, name: str = "") -> Payload:
        """Check a payload and the name for it. Verifies a program.

        Raises:
            PayloadError, LimitExceeded, InvalidArgument: the payload or the name is refused.
        """
        if name:
            check_name(name)
        shipped = self._policy.accept(serialized, name)
        if shipped.is_program:
            load_program(shipped)
        else:
            self._check_python(shipped)
        return shipped
