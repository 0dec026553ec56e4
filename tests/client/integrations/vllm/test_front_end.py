"""How vLLM's front end gets failures from its workers, and reports them: with the part of its classes that is used."""

from __future__ import annotations

import enum
import logging
import os
import sys
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client import REGISTRY

from logitport import LogitportError, ProcessorFailed
from logitport.integrations.vllm import front_end
from logitport.integrations.vllm.mailbox import Failure, Mailbox, _private_folder, record

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


class FinishReason(enum.IntEnum):
    STOP = 0
    ERROR = 3


@dataclass
class Output:
    request_id: str
    finish_reason: FinishReason | None = None
    stop_reason: Any = None


class Queue:
    """A collector: an exception replaces an output."""

    def __init__(self) -> None:
        self.item: Any = None

    def put(self, item: Any) -> None:
        if self.item is None or isinstance(item, Exception):
            self.item = item


@dataclass
class Result:
    reqs_to_abort: list[str] = field(default_factory=list)


class OutputProcessor:
    """The part of vLLM's class that is used."""

    def __init__(self, **states: Any) -> None:
        self.request_states = states
        self.processed: list[Output] = []

    def process_outputs(self, engine_core_outputs: list[Output], timestamp: float | None = None) -> Result:
        self.processed += [one for one in engine_core_outputs if one.request_id in self.request_states]
        return Result()

    def abort_requests(self, request_ids: list[str], internal: bool) -> list[str]:
        assert internal
        for request_id in request_ids:
            self.request_states.pop(request_id).queue.put("aborted")
        return request_ids


@pytest.fixture(autouse=True)
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Mailbox:
    """Install the front end, and return the mailbox of a worker."""
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(front_end, "_mailboxes", {})
    for name in ("vllm", "vllm.v1", "vllm.v1.engine", "vllm.v1.engine.output_processor"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    sys.modules["vllm.v1.engine"].FinishReason = FinishReason  # type: ignore[attr-defined]
    patched = type("Patched", (OutputProcessor,), {"process_outputs": OutputProcessor.process_outputs})
    sys.modules["vllm.v1.engine.output_processor"].OutputProcessor = patched  # type: ignore[attr-defined]
    for _ in range(2):
        front_end.install(SimpleNamespace(instance_id="abc"))
    return Mailbox("abc")


def processor(**states: Any) -> Any:
    return sys.modules["vllm.v1.engine.output_processor"].OutputProcessor(**states)


def failure(request_id: str) -> Failure:
    return Failure(request_id, "ProcessorFailed", ProcessorFailed.code, "it raised")


def test_a_failed_request_is_answered_with_its_error_and_aborted(worker: Mailbox) -> None:
    queues = {name: Queue() for name in ("fails", "runs")}
    outputs = processor(**{name: SimpleNamespace(queue=queue) for name, queue in queues.items()})
    worker.post(failure("fails"))
    worker.post(failure("of another front end"))

    result = outputs.process_outputs([Output("fails", FinishReason.STOP), Output("runs")], 1.0)

    assert str(queues["fails"].item) == "logitport: ProcessorFailed: it raised"
    assert isinstance(queues["fails"].item, ProcessorFailed)  # without vLLM's own exceptions
    assert queues["runs"].item is None
    assert result.reqs_to_abort == ["fails"]
    assert [one.request_id for one in outputs.processed] == ["runs"]
    assert [one.request_id for one in worker.waiting()] == ["of another front end"]


def test_the_synchronous_engine_returns_the_finish_reason(worker: Mailbox) -> None:
    outputs, before = processor(fails=SimpleNamespace(queue=None)), counted()
    worker.post(failure("fails"))

    assert outputs.process_outputs([]).reqs_to_abort == []  # until there is an output that can report it
    result = outputs.process_outputs([Output("fails")])

    (output,) = outputs.processed
    assert output.finish_reason is FinishReason.ERROR
    assert output.stop_reason == "logitport: ProcessorFailed: it raised"
    assert result.reqs_to_abort == ["fails"]
    assert not worker.waiting()
    assert counted() == before + 1


def counted() -> float:
    return REGISTRY.get_sample_value("logitport_failed_requests_total", {"error": "ProcessorFailed"}) or 0.0


def names(waiting: Iterable[Failure]) -> set[str]:
    return {one.request_id for one in waiting}


def test_a_failure_is_described_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    def recorded(error: Exception) -> Failure:
        return record(error, request_id="7-abc", output_length=3, forced_token_id=1)

    with caplog.at_level(logging.ERROR):
        failed = recorded(ProcessorFailed("it raised", processor="a/b", remote_traceback="here"))
    assert failed == failure("7-abc")
    assert "'7-abc' ends after 3 ids by forcing id 1" in caplog.text
    assert "here" in caplog.text
    own = Failure("7-abc", "RuntimeError", LogitportError.code, "RuntimeError: of our own")
    assert recorded(RuntimeError("of our own")) == own


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


def test_failures_that_nothing_takes_are_removed(tmp_path: Path) -> None:
    mailbox = Mailbox("abc")
    mailbox.post(failure("old"))
    (path,) = (path for path in tmp_path.rglob("*") if path.is_file())
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
def test_a_folder_that_others_may_open_is_not_used(
    tmp_path: Path, spoil: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path / "other"))
    parent = tmp_path / "other" / f"logitport-vllm-{os.getuid()}"
    parent.parent.mkdir()
    parent.mkdir(mode=0o700)
    spoil(parent)
    assert _private_folder("abc") is None
    assert "vLLM's clients get no error" in caplog.text
