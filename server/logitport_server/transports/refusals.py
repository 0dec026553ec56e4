"""The log and the count of requests that are refused at admission."""

from __future__ import annotations

import logging
from types import MappingProxyType
from typing import TYPE_CHECKING

from logitport_proto import common_pb2
from logitport_server.metrics.counts import code_label
from logitport_session.resources.log_limit import LogLimit

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from logitport_server.metrics.session_counts import SessionCounts
    from logitport_session.trust.principals import Principal

logger = logging.getLogger(__name__)

# Characters of an error in the log; errors quote what the caller sent.
_MAX_REASON_LENGTH = 300

# Messages that may quote values of parameters, or what a processor made of them. These may be personal data,
# and traces leave them out, too. Only the caller gets them.
_UNLOGGED = frozenset(
    {
        common_pb2.ERROR_CODE_INVALID_ARGUMENT,
        common_pb2.ERROR_CODE_INVALID_PAYLOAD,
        common_pb2.ERROR_CODE_PROCESSOR_FAILED,
    }
)


class Refusals:
    """Counts refused requests, and logs them in at most one line a second for each principal. Thread-safe."""

    def __init__(self, counts: SessionCounts) -> None:
        self._counts = counts
        self._limit = LogLimit()

    def record(
        self,
        principal: Principal,
        failures: Sequence[common_pb2.Failure],
        requests: int,
        log_fields: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Record a frame, or a call of Apply, of this many requests, with the failures of refused ones, if any."""
        if not failures:
            return
        self._counts.requests_refused(failures)
        unlogged = self._limit.take(principal.name, len(failures))
        if unlogged is None:
            return
        first = failures[0]
        logger.info(
            "refused %d of %d requests of %s, and %d before that were not logged; the first, %sof slot %d: %s: %r",
            len(failures),
            requests,
            principal.display_name,
            unlogged,
            f"{request_id!r} " if (request_id := log_fields.get("request_id")) else "",
            first.slot,
            common_pb2.ErrorCode.Name(first.error.code),
            _reason(first.error),
            extra={
                "event": "requests_refused",
                "principal": principal.name,
                **log_fields,
                "requests": len(failures) + unlogged,
                "slot": first.slot,
                "code": code_label(first.error.code),
            },
        )


def _reason(error: common_pb2.Error) -> str:
    if error.code in _UNLOGGED:
        return f"the caller got the message; processor {error.processor[:_MAX_REASON_LENGTH]!r}"
    return error.message[:_MAX_REASON_LENGTH]
