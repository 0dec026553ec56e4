"""Failures on their way from vLLM's workers to its front end."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from logitport import ProcessorFailed
from logitport.integrations.vllm.mailbox import Failure, Mailbox, _private_folder

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of temporary files."""
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    return tmp_path


def failure(request_id: str) -> Failure:
    return Failure(request_id, "ProcessorFailed", ProcessorFailed.code, "it raised")


def names(waiting: Iterable[Failure]) -> set[str]:
    return {one.request_id for one in waiting}


def test_another_process_takes_what_a_worker_posts() -> None:
    worker, front_end, other = Mailbox("abc"), Mailbox("abc"), Mailbox("another engine")
    worker.post(failure("cmpl-1/../../x"))
    worker.post(failure("cmpl-2"))
    assert names(front_end.waiting()) == {"cmpl-1/../../x", "cmpl-2"}
    assert not other.waiting()
    front_end.take(failure("cmpl-2"))
    assert list(front_end.waiting()) == [failure("cmpl-1/../../x")]


def test_without_names_nothing_is_posted() -> None:
    unnamed, mailbox = Mailbox(""), Mailbox("abc")
    unnamed.post(failure("r"))
    mailbox.post(failure(""))
    assert not unnamed.waiting()
    assert not mailbox.waiting()


def test_failures_that_nothing_takes_are_removed(folder: Path) -> None:
    mailbox = Mailbox("abc")
    mailbox.post(failure("old"))
    (path,) = (path for path in folder.rglob("*") if path.is_file())
    os.utime(path, (0, 0))
    mailbox.post(failure("new"))
    assert names(Mailbox("abc").waiting()) == {"new"}


def test_their_number_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("logitport.integrations.vllm.mailbox._MAX_FILES", 3)
    mailbox = Mailbox("abc")
    for number in range(10):
        mailbox.post(failure(f"r{number}"))
    assert len(mailbox.waiting()) == 3


@pytest.mark.parametrize("spoil", [lambda path: path.chmod(0o755), lambda path: (path.rmdir(), path.symlink_to("/"))])
def test_a_folder_that_others_may_open_is_not_used(folder: Path, spoil: Any, caplog: pytest.LogCaptureFixture) -> None:
    parent = folder / f"logitport-vllm-{os.getuid()}"
    parent.mkdir(mode=0o700)
    spoil(parent)
    assert _private_folder("abc") is None
    assert "vLLM's clients get no error" in caplog.text
