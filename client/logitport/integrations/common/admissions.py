"""Begins the admissions of an engine's new requests together."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from logitport.integrations.common.circuit_breaker import is_session_error

if TYPE_CHECKING:
    from collections.abc import Mapping

    from logitport.request import Request
    from logitport.session.pending_request import PendingRequest
    from logitport.session.session import Session

_K = TypeVar("_K")


def begin_together(
    session: Session, requests: Mapping[_K, Request]
) -> tuple[dict[_K, PendingRequest], dict[_K, Exception]]:
    """Begin the admissions of these requests with one frame, because each frame waits for the server.

    Returns:
        The pending requests, and the errors of those that cannot be sent.

    Raises:
        ServerUnavailable, SessionClosed: the session failed, see `is_session_error`.
    """
    try:
        return dict(zip(requests, session.begin_add(requests.values()))), {}  # noqa: B905
    except Exception as error:
        if is_session_error(error):
            raise
        if len(requests) == 1:
            return {}, dict.fromkeys(requests, error)
    begun: dict[_K, PendingRequest] = {}
    errors: dict[_K, Exception] = {}
    for key, request in requests.items():  # none was begun: find those that cannot be sent
        one, error_of_one = begin_together(session, {key: request})
        begun |= one
        errors |= error_of_one
    return begun, errors
