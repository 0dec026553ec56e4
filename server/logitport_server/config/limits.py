"""Limits of requests, sessions, principals and memory."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from logitport_server.config.option import OptionGroup
from logitport_server.config.units import Size
from logitport_server.config.values import CallRate, Rate
from logitport_session.resources.session_limits import SessionLimits

# Principals that can have all of their sessions at the same time. One principal alone cannot use up all sessions.
_FULL_PRINCIPALS = 4


class Limits(OptionGroup):
    """Limits for clients."""

    heading: ClassVar[str] = "Limits"

    max_message_bytes: Size = Field(
        SessionLimits.max_message_bytes,
        ge=1 << 16,
        le=(1 << 31) - 1,
        description="maximum size of a gRPC message in either direction; 256 rows of 152k float32 logits take 156 MB",
    )
    max_requests_per_session: int = Field(
        SessionLimits.max_requests_per_session, ge=1, description="maximum number of requests in one session"
    )
    max_step_work: int = Field(
        SessionLimits.max_step_work,
        ge=1,
        description="maximum work of a step: for each request, its rows or drafts times its processors, added up; the "
        "same limit applies to its new ids times its processors",
    )
    max_tokens_per_request: int = Field(
        SessionLimits.max_tokens_per_request,
        ge=1,
        description="maximum number of token ids of one request, with the longest path of its drafts",
    )
    max_principal_memory: Size = Field(
        SessionLimits.max_principal_memory,
        ge=1 << 20,
        le=(1 << 62) - 1,
        description="maximum memory for the histories and states of all requests of one principal, by upper bounds; "
        "256 requests of 32k ids with no_repeat_ngram and thinking_budget take 373 MiB",
    )
    max_region_bytes: Size = Field(
        SessionLimits.max_region_bytes, ge=0, description="maximum shared memory of one session"
    )
    max_sessions_per_principal: int = Field(
        64,
        ge=1,
        description="maximum number of open sessions of one principal; all principals together have four times as many",
    )
    max_call_rate: CallRate = Field(
        "1000/second",
        description="maximum rate of calls of one principal; opening a session counts as a call, a step does not",
    )

    @property
    def max_step_bytes(self) -> int:
        """The maximum size of the frame with a step's columns."""
        return min(SessionLimits.max_step_bytes, self.max_message_bytes)

    @property
    def max_sessions(self) -> int:
        """The maximum number of open sessions."""
        return _FULL_PRINCIPALS * self.max_sessions_per_principal

    @property
    def call_rate(self) -> Rate:
        """The maximum rate of calls of one principal."""
        return Rate.parse(self.max_call_rate)
