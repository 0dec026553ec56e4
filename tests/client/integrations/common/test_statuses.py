"""The HTTP status of a request that was refused or failed."""

from __future__ import annotations

import pytest

from logitport import errors
from logitport.integrations.common.statuses import caused_by_chain, status_of, text_for_caller


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (errors.InvalidParams, 400),
        (errors.UnknownProcessor, 400),
        (errors.LoadFailed, 400),
        (errors.ProcessorFailed, 500),  # its author can repair it, and the caller cannot
        (errors.ProcessorTimedOut, 500),
        (errors.ProcessorQuarantined, 503),
        (errors.ServerUnavailable, 503),
        (errors.StateLost, 503),  # the service has restarted, or a worker has ended: the same request may succeed
        (errors.InternalError, 500),
        (errors.NeedSync, 500),
    ],
)
def test_the_status_names_the_cause(error: type[errors.LogitportError], status: int) -> None:
    assert status_of(error) == status


@pytest.mark.parametrize(
    ("error", "caused"),
    [(errors.UnknownProcessor, True), (errors.ProcessorTimedOut, True), (errors.ServerUnavailable, False)],
)
def test_a_chain_that_fails_again_is_refused_at_admission(error: type[errors.LogitportError], caused: bool) -> None:
    assert caused_by_chain(error) is caused


ADDRESS = "10.0.0.5:50051"


@pytest.mark.parametrize(
    "error",
    [
        errors.ServerUnavailable,
        errors.DeadlineExceeded,
        errors.SessionClosed,
        errors.NotAuthenticated,
        errors.NotPermitted,
        errors.InternalError,
        errors.LogitportError,
    ],
)
def test_a_caller_gets_no_address_of_the_service(error: type[errors.LogitportError]) -> None:
    text = text_for_caller(error, f"no connection to {ADDRESS}: refused")
    assert ADDRESS not in text
    assert "the engine's log has the reason" in text


@pytest.mark.parametrize("error", [errors.InvalidParams, errors.ProcessorFailed, errors.LimitExceeded])
def test_a_caller_gets_the_message_of_an_error_of_its_chain(error: type[errors.LogitportError]) -> None:
    assert text_for_caller(error, "the message") == "the message"
