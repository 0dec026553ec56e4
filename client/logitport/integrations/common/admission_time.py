"""Admissions of an engine's new requests: sent together, and waited for a bounded time."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from logitport.integrations.common.circuit_breaker import is_session_error

if TYPE_CHECKING:
    from collections.abc import Mapping

    from logitport.session import Handle, Session
    from logitport.shipping.request import Request

_K = TypeVar("_K")

# For a step to wait, after the forward pass. The front end has tried and timed the chains, so that an engine rarely
# waits for so long.
MAX_SECONDS = 5.0


def enter_together(
    session: Session, requests: Mapping[_K, Request], seconds: float | None = None
) -> tuple[dict[_K, Handle], dict[_K, Exception]]:
    """Admit these requests with one frame; see `Session.enter`.

    Args:
        session: of the requests.
        requests: by any key.
        seconds: another time than `MAX_SECONDS`.

    Returns:
        The handles, and the errors of those that cannot be sent.

    Raises:
        ServerUnavailable, SessionClosed: the session failed, see `is_session_error`.
    """
    limit = MAX_SECONDS if seconds is None else seconds
    try:
        return dict(zip(requests, session.enter(requests.values(), seconds=limit))), {}  # noqa: B905
    except Exception as error:
        if is_session_error(error):
            raise
        if len(requests) == 1:
            return {}, dict.fromkeys(requests, error)
    entered: dict[_K, Handle] = {}
    errors: dict[_K, Exception] = {}
    for key, request in requests.items():  # none was sent: find those that cannot be sent
        one, error_of_one = enter_together(session, {key: request}, seconds)
        entered |= one
        errors |= error_of_one
    return entered, errors
