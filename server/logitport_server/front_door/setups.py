"""The setup of principals' processes, from the operator's options."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import dill  # type: ignore[import-untyped]

from logitport_server.front_door import machine
from logitport_server.principal_process.setup import Setup

if TYPE_CHECKING:
    from collections.abc import Iterable

    from logitport_server.config import ServerConfig


def setup_of(config: ServerConfig, processors: Iterable[object] = ()) -> Setup:
    """Return the setup. It has no path or address of a secret.

    `processors` are further installed processors, passed by a program that embeds the server.
    """
    given = list(processors)
    return Setup(
        limits=asdict(config.session_limits),
        device=config.device,
        max_session_age=config.max_session_age,
        logits_processors=list(config.logits_processors),
        entry_points=config.entry_points,
        processors=dill.dumps(given, recurse=True) if given else b"",
        tokenizer=list(config.tokenizer),
        enable_custom_logit_processor=config.enable_custom_logit_processor,
        programs=config.programs,
        max_payload_bytes=config.max_payload_bytes,
        requires_signatures=config.trusted_keys is not None,
        log_level=config.log_level,
        log_format=config.log_format,
        process_memory=machine.process_limit(config.session_limits, machine.memory_bytes()),
    )
