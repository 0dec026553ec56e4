"""What the processes of principals are made with: the operator's options, without secrets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec

from logitport_session.resources.session_limits import SessionLimits

if TYPE_CHECKING:
    from logitport_session.processor_sources.installed import Installed


class Setup(msgspec.Struct, frozen=True):
    """The setup. Fields are those of `ServerConfig` with the same names, unless stated otherwise.

    Attributes:
        limits: the fields of `SessionLimits`.
        stall_seconds: how long an engine may take to receive a reply.
        processors: further installed processors, as dill writes them.
        process_memory: bytes that one process may allocate; 0 for no limit.
    """

    limits: dict[str, Any]
    device: str
    max_session_age: float | None
    logits_processors: list[str]
    entry_points: bool
    processors: bytes
    tokenizer: list[str]
    enable_custom_logit_processor: bool
    programs: bool
    max_payload_bytes: int
    requires_signatures: bool
    stall_seconds: float
    log_level: str
    log_format: Literal["text", "json"]
    process_memory: int = 0

    @property
    def session_limits(self) -> SessionLimits:
        """Limits of a session."""
        return SessionLimits(**self.limits)


class Preloaded(NamedTuple):
    """What all processes have.

    Attributes:
        device: torch's name of the device for logits.
        installed: the installed processors.
    """

    device: str
    installed: Installed
