"""The only module of the service that converts payloads to programs, and verifies them."""

from __future__ import annotations

import logging
from functools import lru_cache
from typing import TYPE_CHECKING

from logitport_programs.program import Program
from logitport_programs.verifier import verify
from logitport_session.processor_sources.source import Source

if TYPE_CHECKING:
    from logitport.payload import Payload
    from logitport_programs.verifier import Verified
    from logitport_session.trust.principals import TrustDomain

logger = logging.getLogger(__name__)

# A program has at most 4 MiB, and its constants are held twice.
_MAX_CACHED = 64


@lru_cache(maxsize=_MAX_CACHED)
def load_program(shipped: Payload) -> Verified:
    """Decode and verify a program. Results are cached by digest; failures are not.

    Every program of a client passes through this function, at its registration or when a request sends it. So a limit
    that needs the program, such as one of its running time, is checked here.

    Raises:
        InvalidArgument: the bytes are not a canonical program, or it breaks a rule.
        LimitExceeded: it has too many values or parameters, or its window is too long.
    """
    logger.info("verifying program %s, %d bytes", shipped.display_name, len(shipped.data))
    return verify(Program.from_bytes(shipped.data))


def source_of(shipped: Payload, domain: TrustDomain) -> Source:
    """Return the source of a payload. The trust domain follows from its code. Raises InvalidArgument, LimitExceeded."""
    if shipped.is_program:
        return Source(shipped.digest, payload=shipped, program=load_program(shipped))
    return Source(shipped.digest, payload=shipped, domain=domain)
