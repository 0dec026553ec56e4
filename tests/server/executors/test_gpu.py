"""Which workers hold the GPU, and how rows of it come to them; CUDA is a stand-in, for there is no GPU here.

The server's end is the real one. The worker's runs on a thread with a stand-in of its own, or, where it is a real
process, has no CUDA at all.
"""

from __future__ import annotations

import gc
import os
import socket
import threading
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
import torch

from logitport import CustomLogitProcessor, History, ProcessorFailed
from logitport.core.cuda_ipc import CudaError
from logitport_server.dialects import RequestContext
from logitport_server.executors import Deadlines, Gpu, ProcessExecutor, remote
from logitport_server.executors.shared_rows import SharedRows
from logitport_server.executors.worker import Worker
from logitport_server.executors.zygote import WorkerProcess
from logitport_server.principals import TrustDomain
from logitport_server.registry.quarantine import Quarantine
from logitport_server.sandbox import LAYERS
from logitport_server.worker import gpu as in_worker
from logitport_server.worker import messages
from logitport_server.worker.serve import _Worker, serve
from tests.recorded_cuda import RecordedCuda, RecordedGpu

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from logitport_server.registry.source import Source

VOCAB = 8
DEADLINES = Deadlines(call=60.0, load=200.0)


class Double(CustomLogitProcessor):
    def __call__(self, logits: torch.Tensor, custom_param_list: Any = None) -> torch.Tensor:
        return logits.mul_(2)


class ReturnsNew(CustomLogitProcessor):
    def __call__(self, logits: torch.Tensor, custom_param_list: Any = None) -> torch.Tensor:
        return logits + logits


class OnThread(WorkerProcess):
    """A worker that is a thread of this process; to kill it is to hang up."""

    def kill(self) -> None:
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)


class House:
    """A server with a GPU, and workers of one author.

    Attributes:
        granted: names of the principals that have the scope.
        processes: those that were made, in order.
    """

    def __init__(self) -> None:
        self.recorded = RecordedGpu()
        self.server, self.worker = RecordedCuda(self.recorded, "server"), RecordedCuda(self.recorded, "worker")
        self.granted = {"alice"}
        self.gpu = Gpu(self.server, ["/dev/nvidia0"], lambda name: name in self.granted)  # type: ignore[arg-type]
        self.processes: list[OnThread] = []

    def dialect(self, source: Source, owner: str = "alice") -> Any:
        domain = TrustDomain(owner)
        worker = Worker(domain, lambda: self._zygote(domain), DEADLINES, Quarantine(3), self.gpu)
        return remote.RemoteDialect(source, worker)

    @property
    def record(self) -> list[str]:
        return self.recorded.record

    def _zygote(self, domain: TrustDomain) -> Any:
        class Zygote:
            fork = staticmethod(lambda: self._fork(holds_gpu=self.gpu.granted(domain)))

        return Zygote

    def _fork(self, *, holds_gpu: bool) -> Future[WorkerProcess]:
        ours, theirs = socket.socketpair()
        ended: Future[int] = Future()

        def run() -> None:
            with theirs, suppress(CudaError, OSError):
                serve(theirs)
            ended.set_result(1)

        threading.Thread(target=run, daemon=True).start()
        self.processes.append(OnThread(ours, os.pidfd_open(os.getpid()), ended, holds_gpu=holds_gpu))
        forked: Future[WorkerProcess] = Future()
        forked.set_result(self.processes[-1])
        return forked


@pytest.fixture
def house(monkeypatch: pytest.MonkeyPatch) -> Iterator[House]:
    house = House()

    def open_gpu(name: str, uuid: bytes) -> RecordedCuda:
        house.worker.record_call("open_gpu")
        assert uuid == house.recorded.uuid
        return house.worker

    monkeypatch.setattr(in_worker, "open_gpu", open_gpu)
    yield house
    for process in house.processes:
        if process._connection.fileno() >= 0:
            process.close()


def process(dialect: Any, rows: int = 2, dtype: torch.dtype = torch.float32) -> None:
    """A call, whose result is right."""
    states = [dialect.start(RequestContext(f"r{row}", History([1]), {}, VOCAB), {}) for row in range(rows)]
    for _ in range(2):
        before = torch.randn(rows, VOCAB).to(dtype)
        logits = before.clone()
        assert torch.equal(dialect.process(states, logits), before * 2)
        assert torch.equal(logits, before)  # it is put in place by whoever called


def told(house: House, *calls: str) -> list[str]:
    return [line for line in house.record if line in calls]


@pytest.mark.parametrize("processor", [Double, ReturnsNew])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_granted_its_worker_edits_memory_of_the_gpu(
    house: House, ship: Callable[..., Source], processor: Any, dtype: torch.dtype
) -> None:
    dialect = house.dialect(ship(processor))
    process(dialect, dtype=dtype)
    assert house.gpu.calls == {"device": 2, "host": 0}
    assert told(house, "server: share", "worker: open_shared", "server: pin") == [
        "server: share",
        "worker: open_shared",
    ]
    assert house.gpu.refusals == 0


def test_the_worker_comes_after_the_server_and_the_server_after_it(
    house: House, ship: Callable[..., Source], monkeypatch: pytest.MonkeyPatch
) -> None:
    send, receive = Worker.send, Worker.receive

    def sends(self: Worker, process: Any, source: Source, call: messages.Call, *rest: Any, **options: Any) -> None:
        house.record.append(f"send {type(call).__name__}")
        send(self, process, source, call, *rest, **options)

    def receives(self: Worker, *rest: Any, **options: Any) -> Any:
        answer = receive(self, *rest, **options)
        house.record.append("receive")
        return answer

    dialect = house.dialect(ship(Double))
    process(dialect)
    monkeypatch.setattr(Worker, "send", sends)
    monkeypatch.setattr(Worker, "receive", receives)
    state = dialect.start(RequestContext("r", History([1]), {}, VOCAB), {})
    house.record.clear()
    dialect.process([state], torch.ones(1, VOCAB))
    assert house.record == ["server: waits for its stream", "send Process", "worker: synchronize", "receive"]


def test_not_granted_its_rows_go_to_pinned_memory_of_the_host(house: House, ship: Callable[..., Source]) -> None:
    dialect = house.dialect(ship(Double), owner="bob")
    process(dialect)
    assert house.gpu.calls == {"device": 0, "host": 2}
    assert "server: pin" in house.record
    assert not [line for line in house.record if line.startswith("worker") or line == "server: share"]
    assert not house.processes[0].holds_gpu


def test_memory_that_cannot_be_pinned_serves_as_well(house: House, ship: Callable[..., Source]) -> None:
    house.server.fails = {"pin"}
    process(house.dialect(ship(Double), owner="bob"))
    assert house.gpu.calls["host"] == 2


@pytest.mark.parametrize(
    ("end", "call"), [("worker", "open_gpu"), ("server", "share"), ("worker", "open_shared")], ids=str
)
def test_what_cuda_refuses_goes_by_the_host(
    house: House, ship: Callable[..., Source], end: str, call: str, caplog: pytest.LogCaptureFixture
) -> None:
    """No request fails; it is said once, and not tried again by any processor of that worker."""
    getattr(house, end).fails = {call}
    dialect = house.dialect(ship(Double))
    process(dialect)
    process(dialect, rows=3)
    assert house.gpu.calls == {"device": 0, "host": 4}
    assert house.gpu.refusals == 1
    (said,) = [record.message for record in caplog.records if "cannot use it" in record.message]
    assert "alice" in said
    assert f"{call}: as configured" in said
    assert house.record.count(f"{end}: {call}") == 1


def test_more_rows_than_before(house: House, ship: Callable[..., Source]) -> None:
    """Memory that is too small is given up once its work has ended, at both ends."""
    dialect = house.dialect(ship(Double))
    process(dialect, rows=1)
    process(dialect, rows=5)
    process(dialect, rows=2)
    assert house.gpu.calls["device"] == 6
    assert house.record.count("worker: open_shared") == 2
    assert house.record.count("server: asks whether its stream is idle") == 1
    assert (house.record.count("server: unmap"), house.record.count("worker: unmap")) == (1, 1)
    del dialect
    gc.collect()
    assert house.record.count("server: unmap") == 2


def test_memory_whose_work_never_ends_is_kept(
    house: House, ship: Callable[..., Source], monkeypatch: pytest.MonkeyPatch
) -> None:
    from logitport_server.shared_memory import device_regions

    monkeypatch.setattr(device_regions, "_QUIET_SECONDS", 0.01)
    monkeypatch.setattr(device_regions, "_kept", kept := [])
    dialect = house.dialect(ship(Double))
    process(dialect)
    house.server.idle = False
    del dialect
    gc.collect()
    assert len(kept) == 1
    assert "server: unmap" not in house.record


def test_who_loses_the_scope_loses_the_gpu(house: House, ship: Callable[..., Source]) -> None:
    dialect = house.dialect(ship(Double))
    process(dialect)
    house.granted.clear()
    process(dialect)
    assert [process.holds_gpu for process in house.processes] == [True, False]
    assert house.gpu.calls == {"device": 2, "host": 2}
    assert not house.processes[0].alive


def test_who_loses_the_scope_and_calls_no_more_loses_the_gpu_too(house: House, ship: Callable[..., Source]) -> None:
    dialect = house.dialect(ship(Double))
    process(dialect)
    dialect._worker.end_revoked()
    process(dialect)
    assert len(house.processes) == 1
    house.granted.clear()
    with dialect._worker.reserved(dialect._source, 1.0):
        dialect._worker.end_revoked()  # it is in a call, which comes first
        assert dialect._worker._process is not None
    dialect._worker.end_revoked()
    assert dialect._worker._process is None
    process(dialect)
    assert [process.holds_gpu for process in house.processes] == [True, False]


def test_what_a_worker_says_is_logged_in_one_line(house: House, caplog: pytest.LogCaptureFixture) -> None:
    holder: Any = type("Process", (), {"uses_gpu": True})()
    house.gpu.disable(TrustDomain("alice"), holder, "\x1b[2J a forged\nline " + "x" * 10_000)
    assert not holder.uses_gpu
    assert caplog.messages[0].isprintable()
    assert len(caplog.messages[0]) < 1000


def test_a_worker_forked_ahead_holds_nothing_that_was_revoked(house: House, ship: Callable[..., Source]) -> None:
    dialect = house.dialect(ship(Double))
    dialect._worker.protocol_error(dialect._source, "nonsense")  # a process is forked at once, for the next call
    house.granted.clear()
    process(dialect)
    assert [process.holds_gpu for process in house.processes] == [True, True, False]


def test_another_process_gets_other_memory(house: House, ship: Callable[..., Source]) -> None:
    """What a process that was ended had begun on the GPU may go on there."""
    dialect = house.dialect(ship(Double))
    process(dialect)
    dialect._worker.protocol_error(dialect._source, "nonsense")
    process(dialect)
    assert house.record.count("server: share") == 2


def test_a_worker_whose_cuda_is_broken_ends(house: House, ship: Callable[..., Source]) -> None:
    dialect = house.dialect(ship(Double))
    state = dialect.start(RequestContext("r", History([1]), {}, VOCAB), {})
    house.worker.fails = {"synchronize"}
    with pytest.raises(ProcessorFailed, match=r"its worker (closed its connection|ended)"):
        dialect.process([state], torch.ones(1, VOCAB))
    house.worker.fails = set()
    process(dialect)
    assert len(house.processes) == 2


def test_a_worker_without_a_gpu_opens_no_memory_of_one(ship: Callable[..., Source]) -> None:
    """However the frame came to it."""
    shipped = ship(Double).payload
    assert shipped is not None
    worker = _Worker()
    host = messages.Host(
        processor=1, name="x", digest=shipped.digest, python=shipped.python, dill=shipped.dill, gpu=None
    )
    reply, _ = worker.answer(host, [memoryview(shipped.data)], [])
    assert isinstance(reply, messages.HostReply)
    assert not reply.gpu_error
    descriptor = os.memfd_create("x")
    call = messages.OpenGpuMemory(processor=1, memory=messages.Memory(1, 4096))
    reply, _ = worker.answer(call, [], [descriptor])
    assert isinstance(reply, messages.ErrorReply)
    assert "this worker uses no GPU" in reply.error.message
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


def test_logits_of_another_device_are_none_of_the_gpus(house: House) -> None:
    house.server.device = torch.device("meta")
    shared = SharedRows(house.gpu, TrustDomain("alice"))
    holder: Any = type("Process", (), {"uses_gpu": True})()
    shared.share(torch.ones(1, VOCAB), holder, lambda *_: pytest.fail("no memory of the GPU is opened"))
    assert house.gpu.calls == {"device": 0, "host": 0}


class Touches(CustomLogitProcessor):
    """Adds 1 if the node can be used."""

    def __call__(self, logits: torch.Tensor, custom_param_list: Any = None) -> torch.Tensor:
        import os

        try:
            os.close(os.open("/dev/full", os.O_RDWR))
        except OSError:
            return logits
        return logits + 1


def test_a_real_worker_holds_the_nodes_of_its_author_alone(
    ship: Callable[..., Source], caplog: pytest.LogCaptureFixture
) -> None:
    """There is no CUDA in these: they say so, and their rows go by the host."""
    if missing := [layer.name for layer in LAYERS if layer.missing() is not None]:
        pytest.skip(f"this machine lacks {missing}, and workers see more than they should")
    server: Any = RecordedCuda(RecordedGpu(), "server")
    server.device = torch.device("cuda", 0)  # whose logits there are none of
    gpu = Gpu(server, ["/dev/full"], {"engine"}.__contains__)
    executor = ProcessExecutor(DEADLINES, 3, gpu=gpu)
    try:
        executor.ready()
        source = ship(Touches)
        others = type(source)(source.key, payload=source.payload, domain=TrustDomain("another", "a"))
        for asked, added in ((source, 1.0), (others, 0.0)):
            dialect = executor.host(asked)
            state = dialect.start(RequestContext("r", History([1]), {}, VOCAB), {})
            assert dialect.process([state], torch.zeros(1, VOCAB)).tolist() == [[added] * VOCAB]
        assert gpu.refusals == 1
        assert "holds cuda:0 but cannot use it" in caplog.text
        assert "CUDA cannot be used" in caplog.text
    finally:
        executor.close()
