"""The failures that vLLM's hook logs in this process."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from logitport.integrations.vllm import remote_batch
from logitport.integrations.vllm.failed_requests import Failure, record


@pytest.fixture
def failures(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The failures since the test began: the arguments of `record`, and what it returned, as attributes."""
    kept: list[Any] = []

    def keep(error: Exception, **fields: Any) -> Failure:
        failure = record(error, **fields)
        traceback = getattr(error, "remote_traceback", "")
        kept.append(SimpleNamespace(**fields | vars(failure), remote_traceback=traceback))
        return failure

    monkeypatch.setattr(remote_batch, "record", keep)
    return kept
