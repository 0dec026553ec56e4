"""Worker processes: their trust domains, their ends, and invalid replies."""

from __future__ import annotations

import gc
import os
import pickle
import socket
import threading
import time
from concurrent.futures import Future
from contextlib import suppress
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock
from weakref import ref

import orjson
import pytest
import torch

from logitport import CustomLogitProcessor, EditProcessor, History, LogitportError, ProcessorFailed, RowEdits
from logitport_runner.process_executor import ProcessExecutor
from logitport_sandbox import LAYERS
from logitport_server.executors.calls.worker import Deadlines, Worker
from logitport_server.executors.worker_processes.worker_process import ProcessPoll, WorkerGone, WorkerProcess
from logitport_server.registry import loader
from logitport_server.registry.quarantine import Quarantine
from logitport_server.worker import messages, packing
from logitport_server.worker.start import start_zygote
from logitport_session.dialects import RequestContext
from logitport_session.dialects.base import by_row
from logitport_session.dialects.failures import WorkerLost

if TYPE_CHECKING:
    from collections.abc import Callable

    from logitport import EditRequest
    from logitport_session.processor_sources.source import Source

    Ship = Callable[..., Source]

VOCAB = 64

EDIT = messages.Edit(processor=1, vocab_size=VOCAB)
HOST = messages.LoadProcessor(processor=1, name="", digest="", python="", dill="")
START = messages.Start(
    processor=1,
    state=2,
    request_id="r",
    prompt_length=0,
    vocab_size=VOCAB,
    tokenizer_id="",
    eos_token_ids=(),
    max_requests=1,
)
REPLY = messages.encode(messages.EditReply())
ERROR = {"code": 13, "message": "", "trace": ""}


class CountsCallsInWorker(EditProcessor):
    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        import logitport_server.worker.call_loop as serving

        edits.bias([0, 1], [float(len(vars(serving).get("earlier_calls", []))), 0.0])
        vars(serving).setdefault("earlier_calls", []).append(1)


class ExitsInCall(CustomLogitProcessor):
    def __call__(self, logits: torch.Tensor, custom_param_list: Any = None) -> torch.Tensor:
        os._exit(7)


def earlier_calls(executor: ProcessExecutor, source: Source) -> int:
    """Return how often processors of this source's worker were called before."""
    dialect = executor.load(source)
    state = dialect.start(RequestContext("r", History([1]), {}, VOCAB), {})
    row_edits = by_row(dialect.edit([state]), 1)
    ((_, _, values),) = row_edits[0]
    assert values is not None
    return int(values[0])


def test_one_worker_for_each_trust_domain(workers: ProcessExecutor, ship: Ship) -> None:
    assert [earlier_calls(workers, ship(CountsCallsInWorker, tenant="x")) for _ in range(3)] == [0, 1, 2]
    assert earlier_calls(workers, ship(CountsCallsInWorker, tenant="y")) == 0
    assert earlier_calls(workers, ship(CountsCallsInWorker, tenant="x")) == 3


def test_the_server_never_unpickles(workers: ProcessExecutor, ship: Ship, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("unpickled in the server")

    source = ship(CountsCallsInWorker, tenant="z")
    monkeypatch.setattr(loader.payload, "loads", refuse)
    monkeypatch.setattr(loader, "_unpickle", refuse)
    for name in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(pickle, name, refuse)
    assert earlier_calls(workers, source) == 0


def test_a_worker_is_killed_from_outside_between_calls(workers: ProcessExecutor, ship: Ship) -> None:
    """The processor is not at fault: the next call runs in another process."""
    source = ship(CountsCallsInWorker, tenant="killed")
    dialect = workers.load(source)
    state = dialect.start(RequestContext("r", History([1]), {}, VOCAB), {})
    worker = dialect.worker  # type: ignore[attr-defined]
    first = worker.process(60.0)
    first.kill()
    while first.alive:
        time.sleep(0.01)
    row_edits = by_row(dialect.edit([state]), 1)
    assert row_edits[0]
    assert worker.process(60.0) is not first
    assert not workers.quarantine.reason(source.key)


class WritesToParams(CustomLogitProcessor):
    """Keeps state that is not a function of the history."""

    def __call__(self, logits: torch.Tensor, custom_param_list: Any = None) -> torch.Tensor:
        custom_param_list[0]["calls"] = 1
        return logits


def test_errors_of_lost_states_do_not_keep_the_processor_alive(workers: ProcessExecutor, ship: Ship) -> None:
    """The processor has shared memory, and an idle server runs no garbage collection."""
    dialect = workers.load(ship(WritesToParams, tenant="lost"))
    state = dialect.start(RequestContext("r", History([1]), {}, VOCAB), {})
    dialect.process([state], torch.zeros(1, VOCAB))
    process = dialect.worker.process(60.0)  # type: ignore[attr-defined]
    process.kill()
    while process.alive:
        time.sleep(0.01)
    with suppress(LogitportError):
        dialect.process([state], torch.zeros(1, VOCAB))
    assert dialect.failed
    gc.disable()
    try:
        reference = ref(dialect)
        del dialect, state
        assert reference() is None
    finally:
        gc.enable()


def test_many_threads_share_a_worker(workers: ProcessExecutor, ship: Ship) -> None:
    counted: list[int] = []
    threads = [
        threading.Thread(
            target=lambda: counted.append(earlier_calls(workers, ship(CountsCallsInWorker, tenant="many")))
        )
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(counted) == list(range(8))


def test_a_call_that_ends_the_worker_is_not_retried_row_by_row(workers: ProcessExecutor, ship: Ship) -> None:
    dialect = workers.load(ship(ExitsInCall, tenant="leaves"))
    states = [dialect.start(RequestContext("r", History([1]), {}, VOCAB), {}) for _ in range(2)]
    with pytest.raises(WorkerLost, match="ended with status 7") as raised:
        dialect.process(states, torch.zeros(2, VOCAB))
    assert isinstance(raised.value, ProcessorFailed)


def wait_for(process: WorkerProcess, seconds: float) -> list[WorkerProcess]:
    poll = ProcessPoll()
    poll.add(process)
    return poll.wait(seconds)


class UntrustedWorker:
    """The worker's end of the socket under the control of a malicious processor."""

    def __init__(self) -> None:
        self.end, server_end = socket.socketpair()
        pidfd = os.pidfd_open(os.getpid())
        self.ended: Future[int | None] = Future()
        self.process = WorkerProcess(server_end, pidfd, self.ended)
        self.process.kill = self.process.request_stack = lambda: None  # type: ignore[method-assign]

    def answer(self, data: bytes) -> Any:
        self.process.post(EDIT, [])
        self.process.flush()
        self.end.sendall(data)
        while True:
            assert wait_for(self.process, 60.0)
            if received := self.process.pump():
                self.process.pump()  # raises if more than the reply was sent
                return received

    def exchange(self, call: messages.WorkerCall, column: bytes, seconds: float) -> Any:
        """Make a call as the server makes it."""
        source: Any = SimpleNamespace(display_name="untrusted", key="key")
        worker = Worker(None, Mock(), Deadlines(seconds, seconds), Quarantine(3, seconds))
        worker._process = self.process
        worker.exchange(source, call, [column], messages.EditReply, seconds)


@pytest.fixture
def untrusted() -> Any:
    worker = UntrustedWorker()
    yield worker
    worker.end.close()
    if worker.process._connection.fileno() >= 0:
        worker.process.close()


@pytest.mark.parametrize(
    "data",
    [
        b"\xff" * 64,
        packing.pack(2, REPLY),
        packing.pack(1, b""),
        packing.pack(1, b"{}"),
        packing.pack(1, b"[" * 100_000),
        packing.pack(1, b'{"type":"EditReply","x":' + b"[" * 100_000),
        packing.pack(1, b'{"type":"Edit","processor":1,"vocab_size":8}'),
        packing.pack(1, b'{"type":"EditReply","failed":{"-1":{"code":1,"message":"","trace":""}}}'),
        packing.pack(1, b'{"type":"ErrorReply","error":{"code":1,"message":"\xff","trace":""}}'),
        packing.pack(1, REPLY) + packing.pack(1, REPLY),
        pickle.dumps({"call": 1}),
    ],
)
def test_an_invalid_frame_ends_the_worker(untrusted: UntrustedWorker, data: bytes) -> None:
    with pytest.raises(WorkerGone):
        untrusted.answer(data)


def test_the_deadline_holds_if_bytes_arrive_slowly(untrusted: UntrustedWorker) -> None:
    frame, stopped = packing.pack(1, REPLY, [bytes(1 << 16)]), threading.Event()

    def send_slowly() -> None:  # the frame would take twenty minutes
        for byte in frame:
            if stopped.wait(0.02):
                return
            with suppress(OSError):  # the server has closed its end
                untrusted.end.sendall(bytes([byte]))

    thread = threading.Thread(target=send_slowly)
    thread.start()
    try:
        with pytest.raises(ProcessorFailed):
            untrusted.exchange(EDIT, b"", 0.3)
    finally:
        stopped.set()
        thread.join()


def test_an_endless_stack_has_a_limit(untrusted: UntrustedWorker) -> None:
    untrusted.process._stack_until = time.monotonic() + 60.0
    ended = threading.Event()

    def send() -> None:
        with suppress(OSError):  # the server has closed its end
            while True:
                untrusted.end.sendall(b'  File "my.py", line 3 in edit\n' * 1000)
        ended.set()

    threading.Thread(target=send).start()
    assert len(untrusted.process.stack()) == 20
    untrusted.process.close()
    assert ended.wait(60)


def test_a_stack_of_a_worker_that_has_ended(untrusted: UntrustedWorker) -> None:
    untrusted.process._stack_until = time.monotonic() + 60.0
    untrusted.end.sendall(b'  File "my.py", line 3 in edit\n  File "my')
    untrusted.end.close()
    assert [str(frame) for frame in untrusted.process.stack()] == ["line 3 of my.py, in edit"]


def test_a_worker_that_does_not_read(untrusted: UntrustedWorker) -> None:
    with pytest.raises(ProcessorFailed):
        untrusted.exchange(HOST, bytes(1 << 24), 0.2)


@pytest.mark.parametrize(
    ("reply", "columns"),
    [
        ({}, []),
        ({"type": "EditReply", "failed": []}, [b""]),
        ({"type": "EditReply", "failed": {"9": ERROR}}, [b""] * 5),
        ({"type": "EditReply", "failed": {"x": ERROR}}, [b""]),
        ({"type": "EditReply", "failed": {"0": {"code": 13}}}, [b""]),
        ({"type": "EditReply", "failed": {"0": {"code": "x", "message": 1, "trace": []}}}, [b""]),
        ({"type": "EditReply", "failed": {}}, []),
        ({"type": "EditReply", "failed": {}}, [b"\xff\xff\xff"]),
        ({"type": "EditReply", "failed": {}}, [b"\xff\xff\xff"] * 5),
        ({"type": "ProcessReply"}, [b""] * 5),
        ({"type": "ErrorReply", "error": 3}, []),
        ({"type": "ErrorReply", "error": {**ERROR, "code": 1 << 40}}, []),
        ({"type": "ErrorReply", "error": {**ERROR, "code": -1}}, []),
    ],
)
def test_an_invalid_reply_ends_the_worker_and_fails_its_requests(
    workers: ProcessExecutor, ship: Ship, monkeypatch: pytest.MonkeyPatch, reply: dict[str, Any], columns: list[bytes]
) -> None:
    source = ship(CountsCallsInWorker, tenant="invalid")
    workers.quarantine.lift(source.key)
    dialect = workers.load(source)
    state = dialect.start(RequestContext("r", History([1]), {}, VOCAB), {})
    before = dialect._calls.process  # type: ignore[attr-defined]
    read = packing.Reader.next

    def read_invalid(reader: packing.Reader, *limits: int) -> packing.Packet | None:
        frame = read(reader, *limits)
        if frame is None:
            return None
        return packing.Packet(frame.call, memoryview(orjson.dumps(reply)), [memoryview(column) for column in columns])

    with monkeypatch.context() as patched:
        patched.setattr(packing.Reader, "next", read_invalid)
        with pytest.raises(WorkerLost, match="its worker sent "):
            dialect.edit([state])
    assert dialect.worker._process is not before  # type: ignore[attr-defined]
    row_edits = by_row(dialect.edit([state]), 1)
    assert row_edits[0]


@pytest.mark.slow
def test_a_zygote_is_launched_again_in_the_background(ship: Ship, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step in the meantime fails within its time, a later one succeeds, and the processor is charged for neither."""
    launching, may_launch = threading.Event(), threading.Event()
    missing = [layer.name for layer in LAYERS if layer.missing() is not None]
    start, executors = start_zygote, list[ProcessExecutor]()

    def start_late(*arguments: Any, **options: Any) -> Any:
        if executors:
            launching.set()
            assert may_launch.wait(60.0)
        return start(*arguments, **options)

    monkeypatch.setattr("logitport_server.executors.worker_processes.worker_zygotes.start_zygote", start_late)
    executors.append(executor := ProcessExecutor(Deadlines(0.5, 200.0), quarantine_after=1, without=missing))
    try:
        executor.ready()
        dialect = executor.load(ship(CountsCallsInWorker))
        state = dialect.start(RequestContext("r", History([1]), {}, VOCAB), {})
        worker = dialect.worker  # type: ignore[attr-defined]
        (zygote,) = executor._zygotes._zygotes.current().values()
        flush = worker._process.flush

        def end_in_call() -> None:
            zygote._process.kill()
            assert launching.wait(60.0)  # it is launched without another call
            flush()

        monkeypatch.setattr(worker._process, "flush", end_in_call)
        with pytest.raises(WorkerLost, match="ended with the process that forks workers"):
            dialect.edit([state])
        with pytest.raises(ProcessorFailed, match=r"no worker for .* was started within"):
            dialect.edit([state])
        may_launch.set()
        assert worker.process(60.0).alive
        assert by_row(dialect.edit([state]), 1)[0]
        assert executor.quarantine.failures == 0
    finally:
        may_launch.set()
        executor.close()


@pytest.mark.parametrize(
    ("call", "seconds", "message"),
    [
        (HOST, 10.0, r"loading .* 10 s \(--load-timeout-seconds\)"),
        (HOST, 2.0, r"loading .* 2 s \(--processor-timeout-seconds\)"),  # within a step
        (START, 1.5, r"start .* 1\.5 s, .*--processor-timeout-seconds"),
        (EDIT, 1.99, r"call .* 2 s \(--processor-timeout-seconds\)"),  # the step began 0.01 s earlier
    ],
)
def test_the_error_of_a_deadline_names_the_call_and_the_option(
    ship: Ship, call: messages.WorkerCall, seconds: float, message: str
) -> None:
    worker = Worker(None, Mock(), Deadlines(2.0, 10.0), Mock())
    worker._process = Mock(waited_seconds=seconds, stack=list)
    errors: list[BaseException] = []
    at_admission = seconds >= 10.0
    worker.post(
        ship(CountsCallsInWorker), call, [], messages.EditReply, Mock(), errors.append, at_admission=at_admission
    )
    worker.time_out()
    with pytest.raises(ProcessorFailed, match=message):
        raise errors[0]


@pytest.mark.parametrize(
    ("call", "reply", "seconds", "is_charged"),
    [
        (EDIT, messages.EditReply(), 1.5, True),
        (EDIT, messages.EditReply(), 0.5, False),
        (EDIT, messages.ErrorReply(messages.Error(13, "", "")), 1.5, True),
        (HOST, messages.LoadReply(reads_logits=False), 1.5, True),
    ],
)
@pytest.mark.parametrize("at_admission", [False, True])  # an admission has a deadline of its own
def test_a_slow_call_is_charged_even_if_the_processor_raises(
    ship: Ship, call: messages.WorkerCall, reply: messages.Reply, seconds: float, is_charged: bool, at_admission: bool
) -> None:
    quarantine, source = Quarantine(1, call_seconds=1.2), ship(CountsCallsInWorker)
    worker = Worker(source.domain, Mock(), Deadlines(2.0, 10.0), quarantine)
    worker._process = Mock(pump=Mock(return_value=[(reply, [])]), waited_seconds=seconds)
    worker.post(source, call, [], type(reply), Mock(), Mock(), at_admission=at_admission)
    worker.pump()
    assert not worker.pending
    assert bool(quarantine.reason(source.key)) == (is_charged and not at_admission)


def test_only_the_time_that_the_server_waits_is_charged(untrusted: UntrustedWorker) -> None:
    """A reply that arrived while the server called other processors is free."""
    untrusted.process.post(EDIT, [b""])
    untrusted.process.flush()
    untrusted.end.sendall(packing.pack(1, REPLY))
    assert untrusted.process.pump()
    assert untrusted.process.waited_seconds == 0.0
    assert wait_for(untrusted.process, 0.2) == []
    assert untrusted.process.waited_seconds >= 0.19


def test_invalid_bytes_after_valid_replies_are_not_forgotten(untrusted: UntrustedWorker) -> None:
    for _ in range(3):
        untrusted.process.post(EDIT, [b""])
    untrusted.process.flush()
    untrusted.end.sendall(packing.pack(1, REPLY) + packing.pack(9, REPLY))
    assert len(untrusted.process.pump()) == 1
    for _ in range(2):
        with pytest.raises(WorkerGone, match="a reply with the number of another call"):
            untrusted.process.pump()


def test_a_worker_keeps_its_process_while_calls_are_in_flight(ship: Ship) -> None:
    """Another party may be entitled to its slot meanwhile; it gives way at its next call."""
    source, slots = ship(CountsCallsInWorker), Mock()
    worker = Worker(source.domain, Mock(), Deadlines(2.0, 10.0), Quarantine(3, 2.0), slots=slots)
    worker._process = process = Mock()
    worker.post(source, EDIT, [], messages.EditReply, Mock(), Mock())
    assert worker.process(1.0) is process
    slots.acquire.assert_not_called()
