"""Limits of a session."""

from __future__ import annotations

from dataclasses import dataclass

from logitport.system.frame_limits import DEFAULT_MAX_MESSAGE_BYTES, MAX_STEP_BYTES

# For a client to send a call's message, or to receive a reply. A message of 256 MiB takes 20 s with 100 Mbit/s. A
# client that does neither holds memory, and its call counts for its principal.
STALL_SECONDS = 60.0


@dataclass(frozen=True)
class SessionLimits:
    """Limits of a session. The options of a server have the same names and defaults.

    Attributes:
        max_requests_per_session: requests that it holds at once.
        max_message_bytes: size of a frame.
        max_step_bytes: size of the frame with a step's columns.
        max_step_work: rows or drafts of a step times the processors of their requests, added up; also new ids.
        max_tokens_per_request: ids of one request, drafts included.
        max_principal_memory: bytes for the histories and states of all sessions of one principal, by upper bounds.
        max_region_bytes: bytes of shared memory.
        share_device_memory: whether memory of a GPU may be shared with the engine.
        processor_timeout_seconds: time for shipped code in one step.
        load_timeout_seconds: time to load and start one request's chain.
        require_tenant: whether each request has to name a tenant.
        runs_shipped_code: whether shipped code runs in the session's own process, where nothing can end it.
    """

    max_requests_per_session: int = 1024
    max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES
    max_step_bytes: int = MAX_STEP_BYTES
    max_step_work: int = 32768
    max_tokens_per_request: int = 1 << 20
    max_principal_memory: int = 384 << 20
    max_region_bytes: int = 2 << 30
    share_device_memory: bool = True
    processor_timeout_seconds: float = 2.0
    load_timeout_seconds: float = 10.0
    require_tenant: bool = False
    runs_shipped_code: bool = False
