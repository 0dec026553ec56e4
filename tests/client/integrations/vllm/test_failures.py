"""Records of failed requests, and how they are found by request id."""

from __future__ import annotations

import logging
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from logitport import ProcessorFailed
from logitport.integrations.vllm import failures
from logitport.integrations.vllm.failures import _kept, record

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def nothing_known() -> None:
    _kept.clear()


def fail(request_id: str, error: Exception | None = None) -> None:
    error = error or ProcessorFailed("it raised", processor="a/b", remote_traceback="here")
    record(error, request_id=request_id, prompt_length=2, output_length=3, forced_token_id=1)


def test_a_record_describes_the_failure(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        fail("7-abc")

    (failure,) = failures()
    assert (failure.error, failure.message, failure.processor) == ("ProcessorFailed", "it raised", "a/b")
    assert (failure.prompt_length, failure.output_length, failure.forced_token_id) == (2, 3, 1)
    assert "'7-abc' ends after 3 ids by forcing id 1" in caplog.text
    assert "here" in caplog.text


def test_records_are_found_by_the_callers_name() -> None:
    for name in ("7-abcdef01", "0_8-abcdef02", "1_8-abcdef02", "77-abcdef03", "cmpl-5-0-abcdef04"):
        fail(name)

    assert [failure.request_id for failure in failures("7")] == ["7-abcdef01"]
    assert [failure.request_id for failure in failures("8")] == ["0_8-abcdef02", "1_8-abcdef02"]
    assert [failure.request_id for failure in failures("cmpl-5")] == ["cmpl-5-0-abcdef04"]
    assert failures("another") == []


def test_other_processes_read_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGITPORT_FAILURES", str(tmp_path / "failures.jsonl"))
    assert failures() == []
    fail("a")
    fail("b", RuntimeError("of our own"))

    script = (
        "from logitport.integrations.vllm import failures; print([(it.request_id, it.message) for it in failures()])"
    )
    printed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout

    assert printed.strip() == "[('a', 'it raised'), ('b', 'RuntimeError: of our own')]"


def test_an_unwritable_file_is_logged_and_the_record_kept_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("LOGITPORT_FAILURES", str(tmp_path))

    fail("a")

    assert len(_kept) == 1
    assert "cannot be written" in caplog.text
