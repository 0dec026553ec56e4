"""The HTTP status of a request that was refused or failed."""

from __future__ import annotations

import pytest

from logitport import errors
from logitport.integrations.common.statuses import status_of


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (errors.InvalidParams, 400),
        (errors.UnknownProcessor, 400),
        (errors.ProcessorTimedOut, 400),
        (errors.ServerUnavailable, 503),
        (errors.StateLost, 503),  # the service has restarted, or a worker has ended: the same request may succeed
        (errors.InternalError, 500),
        (errors.NeedSync, 500),
    ],
)
def test_the_status_names_the_cause(error: type[errors.LogitportError], status: int) -> None:
    assert status_of(error) == status
