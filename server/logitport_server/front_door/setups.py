"""The setup of principals' processes, from the operator's options."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from logitport_server.front_door import machine
from logitport_server.lifecycle.start_errors import StartupError
from logitport_server.principal_process.setup import Setup
from logitport_session.resources import session_limits

if TYPE_CHECKING:
    from collections.abc import Iterable

    from logitport_server.config import ServerConfig


def setup_of(config: ServerConfig, processors: Iterable[object] = ()) -> Setup:
    """Return the setup. It has no path or address of a secret.

    Args:
        config: the options.
        processors: further installed processors, passed by a program that embeds the server.

    Raises:
        StartupError: a processor cannot be serialized.
    """
    given = list(processors)
    return Setup(
        limits=asdict(config.session_limits),
        device=config.device,
        max_session_age=config.max_session_age,
        logits_processors=list(config.logits_processors),
        entry_points=config.entry_points,
        processors=_serialized(given) if given else b"",
        tokenizer=list(config.tokenizer),
        enable_custom_logit_processor=config.enable_custom_logit_processor,
        programs=config.programs,
        max_payload_bytes=config.max_payload_bytes,
        requires_signatures=config.trusted_keys is not None,
        stall_seconds=session_limits.STALL_SECONDS,
        log_level=config.log_level,
        log_format=config.log_format,
        process_memory=machine.process_limit(config, machine.memory_bytes()),
    )


def _serialized(processors: list[object]) -> bytes:
    import dill  # type: ignore[import-untyped]  # not in a front door of `logitport serve`

    for processor in processors:
        try:
            dill.dumps(processor, recurse=True)
        except Exception as error:
            name = getattr(processor, "__qualname__", repr(processor))
            raise StartupError(
                f"the processor {name} cannot be sent to the processes of sessions: dill cannot serialize it "
                f"({type(error).__name__}: {error}). Pass a class or function that dill can serialize, or install its "
                "module and name it by --logits-processors MODULE:CLASS"
            ) from error
    dumped: bytes = dill.dumps(processors, recurse=True)
    return dumped
