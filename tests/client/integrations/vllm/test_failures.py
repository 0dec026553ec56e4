"""Descriptions of failed requests, and their lines in the log."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from logitport import LogitportError, ProcessorFailed
from logitport.integrations.vllm.mailbox import Failure, record

if TYPE_CHECKING:
    import pytest


def fail(error: Exception) -> Failure:
    return record(error, request_id="7-abc", output_length=3, forced_token_id=1)


def test_a_failure_is_described_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        failure = fail(ProcessorFailed("it raised", processor="a/b", remote_traceback="here"))

    assert failure == Failure("7-abc", "ProcessorFailed", ProcessorFailed.code, "it raised")
    assert "'7-abc' ends after 3 ids by forcing id 1" in caplog.text
    assert "here" in caplog.text


def test_an_error_of_the_hook_itself() -> None:
    assert fail(RuntimeError("of our own")) == Failure(
        "7-abc", "RuntimeError", LogitportError.code, "RuntimeError: of our own"
    )
