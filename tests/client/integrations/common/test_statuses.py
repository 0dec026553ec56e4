"""The HTTP status of a request that was refused or failed."""

from __future__ import annotations

import pytest

from logitport import errors
from logitport.integrations.common.statuses import caused_by_chain, status_of, text_for_caller


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (errors.InvalidArgument, 400),
        (errors.NotFound, 400),
        (errors.PayloadError, 400),
        (errors.ProcessorFailed, 500),  # its author can repair it, and the caller cannot
        (errors.ServerUnavailable, 503),
        (errors.StateLost, 503),  # the service has restarted, or a worker has ended: the same request may succeed
        (errors.LogitportError, 500),
    ],
)
def test_the_status_names_the_cause(error: type[errors.LogitportError], status: int) -> None:
    assert status_of(error, error.code) == status
    # These codes differ from those of their classes.
    assert status_of(errors.ProcessorFailed, errors.ProcessorFailed.QUARANTINED) == 503
    assert status_of(errors.AccessDenied, errors.AccessDenied.NOT_AUTHENTICATED) == 503
    assert status_of(errors.AccessDenied, errors.AccessDenied.NOT_PERMITTED) == 500


@pytest.mark.parametrize(
    ("error", "caused"),
    [(errors.NotFound, True), (errors.ProcessorFailed, True), (errors.ServerUnavailable, False)],
)
def test_a_chain_that_fails_again_is_refused_at_admission(error: type[errors.LogitportError], caused: bool) -> None:
    assert caused_by_chain(error) is caused


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        *((error, False) for error in (errors.ServerUnavailable, errors.SessionClosed, errors.AccessDenied)),
        (errors.LogitportError, False),
        *((error, True) for error in (errors.InvalidArgument, errors.ProcessorFailed, errors.LimitExceeded)),
    ],
)
def test_a_caller_gets_the_message_of_its_chain_and_no_address_of_the_service(
    error: type[errors.LogitportError], shown: bool
) -> None:
    message = "no connection to 10.0.0.5:50051: refused"
    text = text_for_caller(error, error.code, message)
    assert (text == message) == shown
    assert shown or ("10.0.0.5" not in text and "the engine's log has the reason" in text)
