"""Workers that hold the GPU, and the transfer of its rows to them. CUDA is a recording fake: no GPU is needed.

The server's end is real. The worker's end runs on a thread with its own fake of CUDA, or in a real process without
CUDA.
"""

from __future__ import annotations

import gc
import math
import os
from typing import TYPE_CHECKING, Any

import pytest
import torch
from transformers import LogitsProcessor

from logitport import CustomLogitProcessor, History, ProcessorFailed
from logitport_server.executors.calls import admission_runner, remote_dialect
from logitport_server.executors.calls.domain_workers import DomainWorkers
from logitport_server.executors.calls.worker import Deadlines, Worker
from logitport_server.executors.worker_processes.gpu import Gpu
from logitport_server.executors.worker_processes.worker_process import WorkerGone, WorkerProcess
from logitport_server.registry.quarantine import Quarantine
from logitport_server.worker import messages
from logitport_server.worker import open_gpu as in_worker
from logitport_session.dialects import RequestContext
from logitport_session.trust.principals import Party, TrustDomain
from tests.recorded_cuda import RecordedCuda, RecordedGpu
from tests.server.executors.thread_workers import fork
from tests.server.lent_workers import missing_layers
from tests.toy_processors import DoubleInPlace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future

    from logitport_runner.process_executor import ProcessExecutor
    from logitport_session.processor_sources.source import Source

VOCAB = 8
HELD = 12_347  # no other tensor has this size
DEADLINES = Deadlines(call=60.0, load=200.0)


class ReturnsNew(CustomLogitProcessor):
    def __call__(self, logits: torch.Tensor, custom_param_list: Any = None) -> torch.Tensor:
        return logits + logits


class RunsOutOfMemory(CustomLogitProcessor):
    def __call__(self, logits: torch.Tensor, custom_param_list: Any = None) -> torch.Tensor:
        held = torch.zeros(HELD)
        raise torch.cuda.OutOfMemoryError(f"CUDA out of memory: {len(held)}")


class RunsOutOfMemoryInOneRow(LogitsProcessor):
    """Its dialect keeps the error of each row."""

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        held = torch.zeros(HELD)
        try:
            raise torch.cuda.OutOfMemoryError(f"CUDA out of memory: {len(held)}")
        except torch.cuda.OutOfMemoryError as error:
            raise RuntimeError("no memory") from error


class GpuServer:
    """The server's side: a GPU, and workers that run on threads.

    Attributes:
        granted: names of the principals that have the scope.
        processes: all workers, in the order of creation.
    """

    def __init__(self) -> None:
        self.recorded = RecordedGpu()
        self.server, self.worker = RecordedCuda(self.recorded, "server"), RecordedCuda(self.recorded, "worker")
        self.granted = {"alice"}
        self.gpu = Gpu(self.server, ["/dev/nvidia0"], lambda name: name in self.granted)  # type: ignore[arg-type]
        self.processes: list[WorkerProcess] = []

    def dialect(self, source: Source, owner: str = "alice") -> Any:
        domain = TrustDomain(owner, Party("engine"))
        quarantine = Quarantine(3, DEADLINES.call)

        def new_worker() -> Worker:
            return Worker(domain, lambda _: self._zygote(domain), DEADLINES, quarantine, self.gpu)

        return remote_dialect.RemoteDialect(source, DomainWorkers(new_worker))

    @property
    def record(self) -> list[str]:
        return self.recorded.record

    def _zygote(self, domain: TrustDomain) -> Any:
        class Zygote:
            fork = staticmethod(lambda: self._fork(holds_gpu=self.gpu.granted(domain)))

        return Zygote

    def _fork(self, *, holds_gpu: bool) -> Future[WorkerProcess]:
        forked = fork(holds_gpu=holds_gpu)
        self.processes.append(forked.result())
        return forked


@pytest.fixture
def gpu_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[GpuServer]:
    gpu_server = GpuServer()

    def open_gpu(name: str, uuid: bytes) -> RecordedCuda:
        gpu_server.worker.record_call("open_gpu")
        assert uuid == gpu_server.recorded.uuid
        return gpu_server.worker

    monkeypatch.setattr(in_worker, "open_gpu", open_gpu)
    yield gpu_server
    for process in gpu_server.processes:
        if process._connection.fileno() >= 0:
            process.close()


def process(dialect: Any, rows: int = 2, dtype: torch.dtype = torch.float32) -> None:
    """Call the processor twice and check its results."""
    states = [dialect.start(RequestContext(f"r{row}", History([1]), {}, VOCAB), {}) for row in range(rows)]
    for _ in range(2):
        before = torch.randn(rows, VOCAB).to(dtype)
        logits = before.clone()
        assert torch.equal(dialect.process(states, logits), before * 2)
        assert torch.equal(logits, before)  # writing the result back is left to the caller


def calls_of(gpu_server: GpuServer, *calls: str) -> list[str]:
    return [line for line in gpu_server.record if line in calls]


@pytest.mark.parametrize("processor", [DoubleInPlace, ReturnsNew])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_with_the_scope_the_worker_edits_gpu_memory(
    gpu_server: GpuServer, ship: Callable[..., Source], processor: Any, dtype: torch.dtype
) -> None:
    dialect = gpu_server.dialect(ship(processor))
    process(dialect, dtype=dtype)
    assert gpu_server.gpu.calls == {"device": 2, "host": 0}
    assert calls_of(gpu_server, "server: share", "worker: open_shared", "server: pin") == [
        "server: share",
        "worker: open_shared",
    ]
    assert gpu_server.gpu.refusals == 0


def test_server_and_worker_wait_for_the_gpu_work_of_each_other(
    gpu_server: GpuServer, ship: Callable[..., Source], monkeypatch: pytest.MonkeyPatch
) -> None:
    post, handle = Worker.post, Worker._handle

    def posts(self: Worker, source: Source, call: messages.WorkerCall, *rest: Any, **options: Any) -> None:
        gpu_server.record.append(f"send {type(call).__name__}")
        post(self, source, call, *rest, **options)

    def handles(self: Worker, *rest: Any) -> None:
        gpu_server.record.append("receive")
        handle(self, *rest)

    dialect = gpu_server.dialect(ship(DoubleInPlace))
    process(dialect)
    monkeypatch.setattr(Worker, "post", posts)
    monkeypatch.setattr(Worker, "_handle", handles)
    state = dialect.start(RequestContext("r", History([1]), {}, VOCAB), {})
    gpu_server.record.clear()
    dialect.process([state], torch.ones(1, VOCAB))
    assert gpu_server.record == ["server: waits for its stream", "send Process", "worker: synchronize", "receive"]


def test_without_the_scope_rows_are_copied_to_pinned_host_memory(
    gpu_server: GpuServer, ship: Callable[..., Source]
) -> None:
    dialect = gpu_server.dialect(ship(DoubleInPlace), owner="bob")
    process(dialect)
    assert gpu_server.gpu.calls == {"device": 0, "host": 2}
    assert "server: pin" in gpu_server.record
    assert not [line for line in gpu_server.record if line.startswith("worker") or line == "server: share"]
    assert not gpu_server.processes[0].holds_gpu


def test_memory_that_cannot_be_pinned_is_used_unpinned(gpu_server: GpuServer, ship: Callable[..., Source]) -> None:
    gpu_server.server.fails = {"pin"}
    process(gpu_server.dialect(ship(DoubleInPlace), owner="bob"))
    assert gpu_server.gpu.calls["host"] == 2


@pytest.mark.parametrize(
    ("end", "call"), [("worker", "open_gpu"), ("server", "share"), ("worker", "open_shared")], ids=str
)
def test_after_a_cuda_error_rows_go_through_host_memory(
    gpu_server: GpuServer, ship: Callable[..., Source], end: str, call: str, caplog: pytest.LogCaptureFixture
) -> None:
    """No request fails. The error is logged once, and no processor of that worker tries again."""
    getattr(gpu_server, end).fails = {call}
    dialect = gpu_server.dialect(ship(DoubleInPlace))
    process(dialect)
    process(dialect, rows=3)
    assert gpu_server.gpu.calls == {"device": 0, "host": 4}
    assert gpu_server.gpu.refusals == 1
    (message,) = [record.message for record in caplog.records if "cannot use it" in record.message]
    assert "alice" in message
    assert f"{call}: as configured" in message
    assert gpu_server.record.count(f"{end}: {call}") == 1


def test_more_rows_than_before(gpu_server: GpuServer, ship: Callable[..., Source]) -> None:
    """Memory that is too small is released at both ends once its work has ended."""
    dialect = gpu_server.dialect(ship(DoubleInPlace))
    process(dialect, rows=1)
    process(dialect, rows=5)
    process(dialect, rows=2)
    assert gpu_server.gpu.calls["device"] == 6
    assert gpu_server.record.count("worker: open_shared") == 2
    assert gpu_server.record.count("server: queries whether its stream is idle") == 1
    assert (gpu_server.record.count("server: unmap"), gpu_server.record.count("worker: unmap")) == (1, 1)
    del dialect
    gc.collect()
    assert gpu_server.record.count("server: unmap") == 2


@pytest.mark.parametrize(("quick_part", "opened"), [(math.inf, 1), (-1.0, 2)], ids=["quick", "slow"])
def test_an_admission_beside_other_requests_opens_no_gpu_until_it_has_calls(
    gpu_server: GpuServer, ship: Callable[..., Source], monkeypatch: pytest.MonkeyPatch, quick_part: float, opened: int
) -> None:
    monkeypatch.setattr(admission_runner, "_QUICK_PART", quick_part)
    running = gpu_server.dialect(ship(DoubleInPlace))
    state = running.start(RequestContext("r", History([1]), {}, VOCAB), {})
    assert gpu_server.record.count("worker: open_gpu") == 1
    other = remote_dialect.RemoteDialect(ship(ReturnsNew), running.worker.group)
    assert [process.holds_gpu for process in gpu_server.processes] == [True, True]
    assert gpu_server.record.count("worker: open_gpu") == 1
    process(other)
    assert gpu_server.gpu.calls == {"device": 2, "host": 0}
    assert gpu_server.record.count("worker: open_gpu") == opened
    assert state.loaded


def test_a_revoked_scope_replaces_the_worker(gpu_server: GpuServer, ship: Callable[..., Source]) -> None:
    dialect = gpu_server.dialect(ship(DoubleInPlace))
    process(dialect)
    gpu_server.granted.clear()
    process(dialect)
    assert [process.holds_gpu for process in gpu_server.processes] == [True, False]
    assert gpu_server.gpu.calls == {"device": 2, "host": 2}
    assert not gpu_server.processes[0].alive


def test_a_revoked_scope_ends_an_idle_worker(gpu_server: GpuServer, ship: Callable[..., Source]) -> None:
    dialect = gpu_server.dialect(ship(DoubleInPlace))
    process(dialect)
    dialect.worker.end_revoked()
    process(dialect)
    assert len(gpu_server.processes) == 1
    gpu_server.granted.clear()
    with dialect.worker.reserved(dialect.source, 1.0):
        dialect.worker.end_revoked()  # a worker in a call is left alone
        assert dialect.worker._process is not None
    dialect.worker.end_revoked()
    assert dialect.worker._process is None
    process(dialect)
    assert [process.holds_gpu for process in gpu_server.processes] == [True, False]


def test_text_of_a_worker_is_logged_in_one_line(gpu_server: GpuServer, caplog: pytest.LogCaptureFixture) -> None:
    holder: Any = type("Process", (), {"uses_gpu": True})()
    gpu_server.gpu.disable(TrustDomain("alice", Party("engine")), holder, "\x1b[2J a forged\nline " + "x" * 10_000)
    assert not holder.uses_gpu
    assert caplog.messages[0].isprintable()
    assert len(caplog.messages[0]) < 1000


def test_a_worker_forked_in_advance_is_replaced_after_a_revocation(
    gpu_server: GpuServer, ship: Callable[..., Source]
) -> None:
    dialect = gpu_server.dialect(ship(DoubleInPlace))
    dialect.worker._fail(WorkerGone("sent nonsense"))  # forks the process for the next call at once
    gpu_server.granted.clear()
    process(dialect)
    assert [process.holds_gpu for process in gpu_server.processes] == [True, True, False]


def test_a_new_process_gets_new_memory(gpu_server: GpuServer, ship: Callable[..., Source]) -> None:
    """GPU work of the killed process may still be running in the old memory."""
    dialect = gpu_server.dialect(ship(DoubleInPlace))
    process(dialect)
    dialect.worker._fail(WorkerGone("sent nonsense"))
    process(dialect)
    assert gpu_server.record.count("server: share") == 2


def test_a_worker_whose_cuda_is_broken_ends(gpu_server: GpuServer, ship: Callable[..., Source]) -> None:
    dialect = gpu_server.dialect(ship(DoubleInPlace))
    state = dialect.start(RequestContext("r", History([1]), {}, VOCAB), {})
    gpu_server.worker.fails = {"synchronize"}
    with pytest.raises(ProcessorFailed, match=r"its worker (closed its connection|ended)"):
        dialect.process([state], torch.ones(1, VOCAB))
    gpu_server.worker.fails = set()
    process(dialect)
    assert len(gpu_server.processes) == 2


class Touches(CustomLogitProcessor):
    """Adds 1 if the device node can be opened."""

    def __call__(self, logits: torch.Tensor, custom_param_list: Any = None) -> torch.Tensor:

        try:
            os.close(os.open("/dev/full", os.O_RDWR))
        except OSError:
            return logits
        return logits + 1


@pytest.mark.slow
def test_only_workers_of_permitted_authors_have_the_device_nodes(
    ship: Callable[..., Source], make_executor: Callable[..., ProcessExecutor], caplog: pytest.LogCaptureFixture
) -> None:
    """The workers have no CUDA: they report that, and their rows go through host memory."""
    if missing := missing_layers():
        pytest.skip(f"this machine lacks {missing}, and without them all workers can see the nodes")
    server: Any = RecordedCuda(RecordedGpu(), "server")
    server.device = torch.device("cuda", 0)  # no logits of this device occur
    gpu = Gpu(server, ["/dev/full"], {"engine"}.__contains__)
    executor = make_executor(gpu=gpu)
    source = ship(Touches)
    without_scope = type(source)(
        source.key, payload=source.payload, domain=TrustDomain("another", Party("another", "a"))
    )
    for shipped, added in ((source, 1.0), (without_scope, 0.0)):
        dialect = executor.load(shipped)
        state = dialect.start(RequestContext("r", History([1]), {}, VOCAB), {})
        assert dialect.process([state], torch.zeros(1, VOCAB)).tolist() == [[added] * VOCAB]
    assert gpu.refusals == 1
    assert "holds cuda:0 but cannot use it" in caplog.text
    assert "CUDA cannot be used" in caplog.text


@pytest.mark.parametrize("processor", [RunsOutOfMemory, RunsOutOfMemoryInOneRow])
@pytest.mark.parametrize("initialized", [True, False])
def test_cached_memory_is_released_after_the_gpu_ran_out_of_it(
    gpu_server: GpuServer,
    ship: Callable[..., Source],
    monkeypatch: pytest.MonkeyPatch,
    processor: Any,
    initialized: bool,
) -> None:
    def empty_cache() -> None:
        """Record whether the processor's tensor is gone: torch releases only memory that no tensor uses."""
        held = [one for one in gc.get_objects() if type(one) is torch.Tensor and one.numel() == HELD]
        gpu_server.record.append(f"empty the cache beside {len(held)} tensors")

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: initialized)
    monkeypatch.setattr(torch.cuda, "empty_cache", empty_cache)
    dialect = gpu_server.dialect(ship(processor))
    state = dialect.start(RequestContext("r", History([1]), {}, VOCAB), {})
    try:
        dialect.process([state], torch.ones(1, VOCAB))
    except ProcessorFailed as error:
        message = error.message
    else:
        message = dialect.failed[0].message
    assert "memory" in message
    emptied = [line for line in gpu_server.record if line.startswith("empty")]
    assert emptied == ["empty the cache beside 0 tensors"] * initialized
    process(gpu_server.dialect(ship(ReturnsNew)))
    assert [line for line in gpu_server.record if line.startswith("empty")] == emptied
