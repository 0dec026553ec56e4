"""How vLLM's front end gets failures and reports from its workers: with the part of its classes that is used."""

from __future__ import annotations

import enum
import logging
import os
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client import REGISTRY

from logitport import LogitportError, ProcessorFailed
from logitport.core.row_events import SKIPPED, RequestEvent, make_event
from logitport.integrations.vllm import failed_requests, front_end, response_reports
from logitport.integrations.vllm.failed_requests import Failure, WaitingFailures, record
from logitport.integrations.vllm.front_end_sockets import FrontEndReceiver, FrontEndSender, _private_folder
from logitport.integrations.vllm.response_reports import ResponseReports, changed, response
from logitport.report import ReportedProcessor

if TYPE_CHECKING:
    from collections.abc import Iterator


class FinishReason(enum.IntEnum):
    STOP = 0
    ERROR = 3


@dataclass
class Output:
    request_id: str
    finish_reason: FinishReason | None = None
    stop_reason: Any = None
    new_token_ids: tuple[int, ...] = ()


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


class Detokenizer:
    def __init__(self) -> None:
        self.ids: list[int] = []

    def num_output_tokens(self) -> int:
        return len(self.ids)


class OutputProcessor:
    """The part of vLLM's class that is used."""

    def __init__(self, **states: Any) -> None:
        self.request_states = states
        self.processed: list[Output] = []

    def process_outputs(self, engine_core_outputs: list[Output], timestamp: float | None = None) -> Result:
        self.processed += [one for one in engine_core_outputs if one.request_id in self.request_states]
        for output in engine_core_outputs:
            if output.new_token_ids:
                self.request_states[output.request_id].detokenizer.ids += output.new_token_ids
            if output.finish_reason is FinishReason.STOP:
                self.request_states.pop(output.request_id, None)
        return Result()

    def add_request(
        self, request: Any, prompt: str | None = None, parent_req: Any = None, request_index: int = 0, queue: Any = None
    ) -> None:
        self.request_states[request.request_id] = SimpleNamespace(
            queue=queue, parent_req=parent_req, request_index=request_index, detokenizer=Detokenizer()
        )

    def abort_requests(self, request_ids: list[str], internal: bool) -> list[str]:
        assert internal
        for request_id in request_ids:
            self.request_states.pop(request_id).queue.put("aborted")
        return request_ids


@pytest.fixture
def folder() -> Iterator[str]:
    """A folder with a short path: that of a socket has at most 107 bytes."""
    with tempfile.TemporaryDirectory() as name:
        yield name


@pytest.fixture(autouse=True)
def worker(folder: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[FrontEndSender]:
    """Install the front end, and return the sender of a worker."""
    monkeypatch.setattr("tempfile.gettempdir", lambda: folder)
    monkeypatch.setattr(front_end, "_engines", {})
    for name in ("vllm", "vllm.v1", "vllm.v1.engine", "vllm.v1.engine.output_processor"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    sys.modules["vllm.v1.engine"].FinishReason = FinishReason  # type: ignore[attr-defined]
    methods = {name: getattr(OutputProcessor, name) for name in ("process_outputs", "add_request")}
    sys.modules["vllm.v1.engine.output_processor"].OutputProcessor = type(  # type: ignore[attr-defined]
        "Patched", (OutputProcessor,), methods
    )
    for _ in range(2):
        front_end.install(SimpleNamespace(instance_id="abc"))
    yield FrontEndSender("abc")
    front_end._engines.clear()


def post(worker: FrontEndSender, *messages: dict[str, Any]) -> None:
    for message in messages:
        worker.add(message)
    worker.flush()


def failed(request_id: str) -> dict[str, Any]:
    return {"failed": vars(failure(request_id))}


def waiting() -> set[str]:
    """The failures that the front end has received and not reported."""
    return {one.request_id for one in front_end._engines["abc"].failures.waiting()}


def processor(**states: Any) -> Any:
    return sys.modules["vllm.v1.engine.output_processor"].OutputProcessor(**states)


def failure(request_id: str) -> Failure:
    return Failure(request_id, "ProcessorFailed", ProcessorFailed.code, "it raised")


def test_a_failed_request_is_answered_with_its_error_and_aborted(worker: FrontEndSender) -> None:
    queues = {name: Queue() for name in ("fails", "runs")}
    outputs = processor(**{name: SimpleNamespace(queue=queue) for name, queue in queues.items()})
    post(worker, failed("fails"), failed("of another front end"))

    result = outputs.process_outputs([Output("fails", FinishReason.STOP), Output("runs")], 1.0)

    assert str(queues["fails"].item) == "logitport: ProcessorFailed: it raised"
    assert isinstance(queues["fails"].item, ProcessorFailed)  # without vLLM's own exceptions
    assert queues["runs"].item is None
    assert result.reqs_to_abort == ["fails"]
    assert [one.request_id for one in outputs.processed] == ["runs"]
    assert waiting() == {"of another front end"}


def test_the_synchronous_engine_returns_the_finish_reason(worker: FrontEndSender) -> None:
    outputs, before = processor(fails=SimpleNamespace(queue=None)), counted()
    post(worker, failed("fails"))

    assert outputs.process_outputs([]).reqs_to_abort == []  # until there is an output that can report it
    result = outputs.process_outputs([Output("fails")])

    (output,) = outputs.processed
    assert output.finish_reason is FinishReason.ERROR
    assert output.stop_reason == "logitport: ProcessorFailed: it raised"
    assert result.reqs_to_abort == ["fails"]
    assert not waiting()
    assert counted() == before + 1


def counted() -> float:
    return REGISTRY.get_sample_value("logitport_failed_requests_total", {"error": "ProcessorFailed"}) or 0.0


def test_a_failure_is_described_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    def recorded(error: Exception) -> Failure:
        return record(error, request_id="7-abc", output_length=3, forced_token_id=1)

    with caplog.at_level(logging.ERROR):
        known = recorded(ProcessorFailed("it raised", processor="a/b", remote_traceback="here"))
    assert known == failure("7-abc")
    assert "'7-abc' ends after 3 ids by forcing id 1" in caplog.text
    assert "here" in caplog.text
    own = Failure("7-abc", "RuntimeError", LogitportError.code, "RuntimeError: of our own")
    assert recorded(RuntimeError("of our own")) == own


def test_each_front_end_receives_all_messages_of_its_engine(worker: FrontEndSender) -> None:
    first, second, other = FrontEndReceiver("abc"), FrontEndReceiver("abc"), FrontEndReceiver("another engine")
    post(worker, failed("cmpl-1/../../x"), failed("cmpl-2"))
    for receiver in (first, second):
        assert list(receiver.receive()) == [failed("cmpl-1/../../x"), failed("cmpl-2")]
        assert not list(receiver.receive())
    assert not list(other.receive())
    for receiver in (first, second, other):
        receiver.close()


def test_a_front_end_that_restarts_loses_messages_and_stops_nothing(worker: FrontEndSender, folder: str) -> None:
    first = FrontEndReceiver("abc")
    post(worker, failed("lost"))
    first._socket.close()  # type: ignore[union-attr] # killed: its socket stays in the folder
    post(worker, failed("to the others"))
    second = FrontEndReceiver("abc")
    post(worker, failed("kept"))
    assert list(second.receive()) == [failed("kept")]
    second.close()
    assert len(list(_private_folder("abc").iterdir())) == 1  # type: ignore[union-attr] # the fixture's
    first.close()


@pytest.mark.slow
def test_a_worker_never_waits_for_a_front_end(worker: FrontEndSender) -> None:
    receiver, names = FrontEndReceiver("abc"), [f"r{number}" for number in range(3000)]
    for name in names:
        post(worker, failed(name))
    received = [one["failed"]["request_id"] for one in receiver.receive()]
    post(worker, failed("last"))
    received += [one["failed"]["request_id"] for one in receiver.receive()]
    assert {*names[-1000:], "last"} <= set(received)  # what had no room was sent later, but for the oldest
    receiver.close()


def test_large_messages_are_divided(worker: FrontEndSender) -> None:
    receiver = FrontEndReceiver("abc")
    post(worker, *({"failed": {"message": "x" * 1000, "n": number}} for number in range(500)))
    received: list[int] = []
    while found := [one["failed"]["n"] for one in receiver.receive()]:
        received += found
        worker.flush()
    assert received == list(range(500))
    receiver.close()


def test_a_message_that_no_datagram_can_hold_does_not_hold_up_others(
    worker: FrontEndSender, caplog: pytest.LogCaptureFixture
) -> None:
    receiver = FrontEndReceiver("abc")
    post(worker, {"large": "x" * (1 << 20)}, {"failed": "small"})
    assert list(receiver.receive()) == [{"failed": "small"}]
    assert "a message of 1048588 bytes does not reach vLLM's front end" in caplog.text


def test_without_names_nothing_is_sent() -> None:
    unnamed = FrontEndSender("")
    post(unnamed, failed("r"))
    assert not list(FrontEndReceiver("").receive())


def test_failures_that_nothing_takes_are_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    failures, now = WaitingFailures(), [0.0]
    monkeypatch.setattr(failed_requests.time, "monotonic", lambda: now[0])
    failures.add(failure("old"))
    now[0] = 61.0
    failures.add(failure("new"))
    assert [one.request_id for one in failures.waiting()] == ["new"]
    for number in range(2000):
        failures.add(failure(f"r{number}"))
    assert len(failures.waiting()) == 1024


CHAIN = [["thinking_budget", {"name": "thinking_budget"}], ["ab" * 32, {"name": "Ban", "digest": "ab" * 32}]]


def began(request_id: str) -> dict[str, Any]:
    return {"began": [request_id, CHAIN]}


def event(request_id: str, position: int, *at: int) -> dict[str, Any]:
    events = [RequestEvent(0, CHAIN[1][0], one, make_event("seen", {"at": one})) for one in at]
    return changed(request_id, position, events)


def test_reports_reach_the_response_of_their_requests(worker: FrontEndSender) -> None:
    outputs, collected, queues = processor(), ResponseReports(), [Queue(), Queue()]
    token = response.set(collected)
    parent = SimpleNamespace(sampling_params=SimpleNamespace(n=2))
    for prompt, queue in enumerate(queues):
        for sample in range(2):
            outputs.add_request(SimpleNamespace(request_id=f"{sample}_r{prompt}"), None, parent, sample, queue)
    response.reset(token)
    outputs.add_request(SimpleNamespace(request_id="of another response"), queue=Queue())
    post(worker, *(began(name) for name in ("0_r0", "1_r1", "of another response")))
    post(worker, event("1_r1", 0, 0), event("of another response", 0, 0))
    outputs.process_outputs([Output(name, new_token_ids=(7,)) for name in ("0_r0", "1_r1")])
    assert not collected.to_json()
    post(worker, event("1_r1", 1, 1, 2, 3), began("1_r1"), event("1_r1", 2, 2), event("unknown", 0, 0))
    ends = [Output(name, FinishReason.STOP, new_token_ids=(8, 9)) for name in ("0_r0", "1_r0", "1_r1")]
    outputs.process_outputs([*ends, Output("of another response", FinishReason.STOP)])
    report = {
        "processors": [{"name": "thinking_budget"}, {"name": "Ban", "digest": "ab" * 32}],
        "rows_applied": 3,
        "rows_skipped": 0,
        "skipped": [],
        "error": "",
        "failed_at": None,
        "events_left_out": 0,
    }
    events = [{"processor": "Ban", "name": "seen", "position": at, "values": {"at": at}} for at in range(3)]
    assert collected.to_json() == [{"index": 0, **report, "events": []}, {"index": 3, **report, "events": events}]


@pytest.mark.parametrize("with_params", [False, True])
def test_a_report_has_the_record_of_its_request(worker: FrontEndSender, with_params: bool) -> None:
    """The chain as it was admitted, and the rows that stayed unchanged."""
    outputs, collected = processor(), ResponseReports()
    token = response.set(collected)
    outputs.add_request(SimpleNamespace(request_id="r"), queue=Queue())
    response.reset(token)
    chain = [("thinking_budget", ReportedProcessor("thinking_budget", "", {"thinking_budget": 4}))]
    handle: Any = SimpleNamespace(described_chain=chain)
    skipped = [RequestEvent(0, "", position, SKIPPED) for position in (1, 2)]
    post(worker, response_reports.began("r", handle, with_params=with_params), changed("r", 1, skipped))
    outputs.process_outputs([Output("r", FinishReason.STOP, new_token_ids=(7, 8, 9, 7))])
    (report,) = collected.to_json()
    named = {"name": "thinking_budget"} | ({"params": {"thinking_budget": 4}} if with_params else {})
    assert report["processors"] == [named]
    assert (report["rows_applied"], report["rows_skipped"], report["skipped"]) == (2, 2, [[1, 3]])


@pytest.mark.usefixtures("worker")
@pytest.mark.parametrize("spoil", [lambda path: path.chmod(0o755), lambda path: (path.rmdir(), path.symlink_to("/"))])
def test_a_folder_that_others_may_open_is_not_used(
    folder: str, spoil: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(Path(folder, "other")))
    parent = Path(folder, "other") / f"logitport-vllm-{os.getuid()}"
    parent.parent.mkdir()
    parent.mkdir(mode=0o700)
    spoil(parent)
    assert _private_folder("abc") is None
    assert "vLLM's clients get no errors" in caplog.text


@pytest.mark.parametrize(
    ("root", "theirs", "expected"),
    [
        (logging.ERROR, logging.INFO, logging.INFO),
        (logging.ERROR, logging.NOTSET, logging.NOTSET),
        (logging.WARNING, logging.ERROR, logging.NOTSET),
    ],
)
def test_warnings_are_shown_where_the_root_logger_hides_them(
    monkeypatch: pytest.MonkeyPatch, root: int, theirs: int, expected: int
) -> None:
    ours = logging.getLogger("logitport")
    monkeypatch.setattr(ours, "level", logging.NOTSET)
    monkeypatch.setattr(logging.root, "level", root)
    monkeypatch.setattr(logging.getLogger("vllm"), "level", theirs)
    front_end.show_log()
    level = ours.level
    ours.setLevel(logging.NOTSET)
    assert level == expected
