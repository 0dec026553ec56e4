"""How vLLM's front end reports failures: with the part of its classes that the hook uses."""

from __future__ import annotations

import enum
import sys
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from logitport.errors import ProcessorFailed
from logitport.integrations.vllm import front_end
from logitport.integrations.vllm.mailbox import Failure, Mailbox

if TYPE_CHECKING:
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
    outputs = processor(fails=SimpleNamespace(queue=None))
    worker.post(failure("fails"))

    assert outputs.process_outputs([]).reqs_to_abort == []  # until there is an output that can report it
    result = outputs.process_outputs([Output("fails")])

    (output,) = outputs.processed
    assert output.finish_reason is FinishReason.ERROR
    assert output.stop_reason == "logitport: ProcessorFailed: it raised"
    assert result.reqs_to_abort == ["fails"]
    assert not worker.waiting()


def test_failures_are_counted(worker: Mailbox) -> None:
    from prometheus_client import REGISTRY

    def counted() -> float:
        value = REGISTRY.get_sample_value("logitport_failed_requests_total", {"error": "ProcessorFailed"})
        return value or 0.0

    before = counted()
    worker.post(failure("fails"))
    processor(fails=SimpleNamespace(queue=None)).process_outputs([Output("fails")])
    assert counted() == before + 1
