"""Logits on a GPU of the engine, of the server, or of both, which edits them in place: real GPU, real processes."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import time
from typing import TYPE_CHECKING, Any

import pytest
import torch

from logitport import Client, CustomLogitProcessor, InvalidArgument, Request
from logitport_proto import processing_pb2
from tests.toy_processors import DoubleInPlace, DoubleLater, RaisesAfterWriting

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from logitport.session import Session

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here"),
]

VOCAB = 50_000
INF = float("inf")
SHIPPED_HERE = ("--enable-custom-logit-processor", "--isolation", "none")
LONG = 2_000_000_000  # cycles: about a second


class DoubleWithoutSynchronizing(CustomLogitProcessor):
    """Makes every synchronization of the server's thread with the GPU an error."""

    def __call__(self, logits: torch.Tensor, custom_param_list: Any = None) -> torch.Tensor:
        torch.cuda.set_sync_debug_mode("error")
        return logits.mul_(2)


@pytest.fixture(scope="module")
def cuda_server(serving: Callable[..., Any]) -> Iterator[Any]:
    pytest.importorskip("cuda.bindings", reason="GPU memory is shared by cuda-bindings")
    with serving("--device", "cuda", *SHIPPED_HERE) as running:
        yield running


def open_session(client: Client, dtype: torch.dtype = torch.float32, transport: Any = "auto") -> Session:
    return client.session(vocab_size=VOCAB, dtype=dtype, device="cuda", transport=transport)


def add(session: Session, *processors: type[CustomLogitProcessor] | None, on_error: Any = "abort") -> list[Any]:
    return [
        session.add(Request(processors=[] if processor is None else [(processor, {})], on_error=on_error))
        for processor in processors
    ]


def run(session: Session, handles: list[Any], logits: torch.Tensor) -> Any:
    return session.step(dict.fromkeys(handles, ())).apply(logits)


@pytest.mark.parametrize("in_buffer", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_logits_are_edited_in_place(cuda_server: Any, dtype: torch.dtype, in_buffer: bool) -> None:
    with Client(cuda_server.target) as client, open_session(client, dtype) as session:
        handles = add(session, DoubleInPlace, None, DoubleInPlace, DoubleInPlace)
        banned = session.add(Request(processors=[("disallowed_tokens", {"token_ids": [7]}), (DoubleInPlace, {})]))
        for _ in range(3):
            before = torch.randn(5, VOCAB, device="cuda").to(dtype)
            logits = session.logits_buffer(5) if in_buffer else torch.empty_like(before)
            logits.copy_(before)
            run(session, [*handles, banned], logits)
            expected = before * torch.tensor([2, 1, 2, 2, 2], device="cuda", dtype=dtype)[:, None]
            expected[4, 7] = -INF
            assert torch.equal(logits, expected)
            assert session.logits_memory == "device"


def test_the_engine_does_not_block(cuda_server: Any) -> None:
    with Client(cuda_server.target) as client, open_session(client) as session:
        handles = [
            *add(session, DoubleInPlace, None, DoubleInPlace),
            session.add(Request([3], processors=[("no_repeat_ngram", {"ngram_size": 1})])),
        ]
        elsewhere = torch.ones(4, VOCAB, device="cuda")
        for logits in (session.logits_buffer(4), elsewhere):
            run(session, handles, logits)  # kernels are compiled, memory is shared
            torch.cuda.set_sync_debug_mode("error")
            try:
                run(session, handles, logits)
            finally:
                torch.cuda.set_sync_debug_mode("default")


def test_the_server_does_not_block(start_server: Callable[..., Any]) -> None:
    pytest.importorskip("cuda.bindings")
    server = start_server("--device", "cuda", *SHIPPED_HERE)
    with Client(server.target) as client, open_session(client) as session:
        handles = add(session, DoubleWithoutSynchronizing, None, DoubleWithoutSynchronizing, DoubleInPlace)
        logits = session.logits_buffer(4)
        for _ in range(3):
            logits.fill_(1.0)
            run(session, handles, logits)
        assert logits[:, 0].tolist() == [2.0, 1.0, 2.0, 2.0]


def test_the_server_runs_after_the_engines_kernels(cuda_server: Any) -> None:
    """The logits are written a second after the call of `apply`, which does not block."""
    with Client(cuda_server.target) as client, open_session(client) as session:
        handles = add(session, DoubleInPlace)
        logits = session.logits_buffer(1)
        run(session, handles, logits)
        torch.cuda.synchronize()
        torch.cuda._sleep(LONG)
        logits.fill_(5.0)
        written = torch.cuda.current_stream().record_event()
        run(session, handles, logits)
        assert not written.query(), "apply waited for the GPU"
        sampled = logits.clone()
        torch.cuda.synchronize()
        assert (sampled == 10.0).all()


def test_the_engine_runs_after_the_servers_kernels(cuda_server: Any) -> None:
    with Client(cuda_server.target) as client, open_session(client) as session:
        handles = add(session, DoubleLater)
        logits = session.logits_buffer(1)
        logits.fill_(5.0)
        run(session, handles, logits)
        sampled = logits.clone()
        edited = torch.cuda.current_stream().record_event()
        assert not edited.query(), "apply waited for the GPU"
        torch.cuda.synchronize()
        assert (sampled == 10.0).all()


def test_on_another_stream(cuda_server: Any) -> None:
    with Client(cuda_server.target) as client, open_session(client) as session:
        handles = add(session, DoubleInPlace)
        for _ in range(4):
            with torch.cuda.stream(torch.cuda.Stream()):
                logits = session.logits_buffer(1)
                torch.cuda._sleep(LONG // 20)
                logits.fill_(5.0)
                run(session, handles, logits)
                sampled = logits.clone()
            torch.cuda.synchronize()
            assert (sampled == 10.0).all()


def test_a_waiting_session_does_not_delay_others(cuda_server: Any) -> None:
    with Client(cuda_server.target) as client, open_session(client) as slow, open_session(client) as quick:
        waiting, going_on = add(slow, DoubleInPlace), add(quick, DoubleInPlace)
        slow_logits, quick_logits = slow.logits_buffer(1), quick.logits_buffer(1)
        run(slow, waiting, slow_logits)
        run(quick, going_on, quick_logits)
        torch.cuda.synchronize()
        with torch.cuda.stream(torch.cuda.Stream()):
            torch.cuda._sleep(LONG)
            slow_logits.fill_(1.0)
            written = torch.cuda.current_stream().record_event()
            run(slow, waiting, slow_logits)
        other = torch.cuda.Stream()
        with torch.cuda.stream(other):
            quick_logits.fill_(1.0)
            run(quick, going_on, quick_logits)
        other.synchronize()
        assert not written.query()
        torch.cuda.synchronize()
        assert (quick_logits == 2.0).all()
        assert (slow_logits == 2.0).all()


@pytest.mark.parametrize(
    ("options", "transport", "memory"),
    [
        (("--device", "cuda", "--no-share-device-memory"), "local", "host"),
        (("--device", "cpu"), "local", "host"),
        (("--device", "cuda"), "grpc", "inline"),
        (("--device", "cuda", "--max-region-bytes", str(VOCAB * 4)), "local", "inline"),
    ],
)
def test_logits_are_sent_when_memory_cannot_be_shared(
    start_server: Callable[..., Any], options: tuple[str, ...], transport: Any, memory: str
) -> None:
    server = start_server(*options, *SHIPPED_HERE)
    with Client(server.target) as client, open_session(client, transport=transport) as session:
        handles = add(session, DoubleInPlace, None, DoubleInPlace)
        for logits in (session.logits_buffer(3), torch.empty(3, VOCAB, device="cuda")):
            assert logits.is_cuda
            for _ in range(2):
                logits.fill_(3.0)
                run(session, handles, logits)
                assert logits[:, 0].tolist() == [6.0, 3.0, 6.0]
                assert session.logits_memory == memory


def test_memory_is_freed_when_sessions_end(cuda_server: Any) -> None:
    """Client and server close all memory that they opened, also when the buffer grows."""

    def used() -> int:
        torch.cuda.synchronize()
        free, total = torch.cuda.mem_get_info()
        return total - free

    def use() -> None:
        with Client(cuda_server.target) as client, open_session(client) as session:
            handles = add(session, DoubleInPlace)
            for rows in (1, 100, 200):
                logits = session.logits_buffer(rows)[:1]
                logits.fill_(1.0)
                run(session, handles, logits)
                assert (logits == 2.0).all()
                assert session.logits_memory == "device"

    use()
    before = used()
    for _ in range(10):
        use()
    assert used() <= before + (64 << 20)


@pytest.mark.parametrize(
    "fields",
    [
        {"memory_handle": bytes(64)},
        {"memory_handle": b"\xa5" * 64},
        {"size_bytes": 1 << 30},
        {"byte_offset": 1 << 30},
        {"ready_event": bytes(64)},
        {"edited_event": b"\xa5" * 64},
    ],
)
def test_false_memory_fields_affect_only_their_session(cuda_server: Any, fields: dict[str, Any]) -> None:
    from logitport.session.logits.device_memory import SharedAllocation
    from logitport.system.cuda_ipc import open_cuda

    cuda = open_cuda(torch.device("cuda"))
    assert cuda is not None
    with Client(cuda_server.target) as client, open_session(client) as honest, open_session(client) as malicious:
        frame = SharedAllocation(cuda, 4096).frame(4096)
        for name, value in fields.items():
            setattr(frame, name, value)
        with pytest.raises(InvalidArgument):
            malicious._channel.exchange(processing_pb2.SessionRequest(share_device_memory=frame))
        for session in (honest, malicious):
            logits = session.logits_buffer(1)
            logits.fill_(1.0)
            run(session, add(session, DoubleInPlace), logits)
            assert (logits == 2.0).all()
            assert session.logits_memory == "device"


ENGINE = """
import sys, time, torch
from logitport import Client, Request
target, digest = sys.argv[1:]
client = Client(target)
session = client.session(vocab_size=50_000, dtype=torch.float32, device="cuda")
handle = session.add(Request(processors=[(digest, {})]))
logits = session.logits_buffer(1)
session.step({handle: ()}).apply(logits)
assert session.logits_memory == "device"
torch.cuda._sleep(2_000_000_000)
session.step({handle: ()}).apply(logits)
print("under way", flush=True)
time.sleep(60)
"""


def test_a_killed_engine_affects_no_other_session(cuda_server: Any) -> None:
    """The engine is killed while its kernel runs, the server's stream waits for it, and both have the memory open."""
    with Client(cuda_server.target) as client, open_session(client) as session:
        digest = client.register(DoubleInPlace).digest
        command = [sys.executable, "-c", textwrap.dedent(ENGINE), cuda_server.target, digest]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as engine:
            assert engine.stdout is not None
            assert engine.stdout.readline() == "under way\n"
            engine.send_signal(signal.SIGKILL)
            engine.wait(30)
        handles = add(session, DoubleInPlace)
        for _ in range(5):
            logits = session.logits_buffer(1)
            logits.fill_(1.0)
            run(session, handles, logits)
            assert (logits == 2.0).all()
            time.sleep(0.2)
        assert session.reconnects == 0


SERVER_KILLED = """
import os, signal, sys, time, torch
from logitport import Client, Request
target, digest, server = sys.argv[1:]
client = Client(target)
session = client.session(vocab_size=50_000, dtype=torch.float32, device="cuda", reconnect_seconds=0)
handle = session.add(Request(processors=[(digest, {})]))
logits = session.logits_buffer(1)
session.step({handle: ()}).apply(logits)
torch.cuda.synchronize()
session.step({handle: ()}).apply(logits)
os.kill(int(server), signal.SIGKILL)
edited = torch.cuda.current_stream().record_event()
deadline = time.monotonic() + 20
while not edited.query():
    if time.monotonic() > deadline:
        os.write(1, b"stuck")
        os._exit(1)
    time.sleep(0.01)
torch.ones(1, device="cuda").sum().item()
os.write(1, b"goes on")
os._exit(0)
"""


def test_a_killed_server_does_not_stop_the_engine(start_server: Callable[..., Any]) -> None:
    """The server dies after its reply but before the end of its kernel, while the engine's stream waits for it.

    CUDA's manual does not define what happens to such an event.
    """
    server = start_server("--device", "cuda", *SHIPPED_HERE)
    with Client(server.target) as client:
        digest = client.register(DoubleLater).digest
    command = [sys.executable, "-c", textwrap.dedent(SERVER_KILLED), server.target, digest, str(server.process.pid)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    assert done.stdout == "goes on", done.stderr


class AddOneOnCuda(CustomLogitProcessor):
    """Adds 1 if the logits are on a GPU, in place or not."""

    def __call__(self, logits: torch.Tensor, custom_param_list: Any = None) -> torch.Tensor:
        return logits.add_(float(logits.is_cuda)) if custom_param_list[0].get("in_place") else logits + logits.is_cuda


class ToCpu(CustomLogitProcessor):
    """Returns its result on another device."""

    def __call__(self, logits: torch.Tensor, custom_param_list: Any = None) -> torch.Tensor:
        return logits.cpu() + 1


@pytest.mark.parametrize("transport", ["grpc", "local"])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_processors_run_on_the_gpu(cuda_server: Any, device: str, transport: Any, dtype: torch.dtype) -> None:
    free = Request([3], processors=[("no_repeat_ngram", {"ngram_size": 1}), ("disallowed_tokens", {"token_ids": [4]})])
    with Client(cuda_server.target) as client:
        session = client.session(vocab_size=VOCAB, dtype=dtype, device=device, transport=transport)
        with session:
            handles = [
                session.add(Request(processors=[(AddOneOnCuda, {"in_place": True})])),
                session.add(free),
                session.add(Request([3], processors=[*free.processors, (AddOneOnCuda, {})])),
                session.add(Request(processors=[(ToCpu, {})])),
                session.add(Request(processors=[(AddOneOnCuda, {}), (RaisesAfterWriting, {})], on_error="skip")),
                session.add(Request(processors=[(ToCpu, {})])),
            ]
            before = torch.randint(-9, 9, (len(handles), VOCAB)).to(device, dtype)
            logits = before.clone()
            result = session.step({handle: [] for handle in handles}).apply(logits)
            assert logits.device.type == device
            denied = torch.zeros(VOCAB, dtype=dtype, device=device)
            denied[[3, 4]] = -INF
            expected = [
                before[0] + 1,
                before[1] + denied,
                before[2] + denied + 1,
                before[3] + 1,
                before[4],
                before[5] + 1,
            ]
            assert torch.equal(logits, torch.stack(expected))
            assert list(result.skipped) == [handles[4]]


def test_apply_on_a_gpu(cuda_server: Any) -> None:
    with Client(cuda_server.target) as client:
        logits = torch.zeros(2, VOCAB, device="cuda")
        out = client.apply(logits, [Request(processors=[(AddOneOnCuda, {})]), Request()]).logits
        assert out.device == logits.device
        assert out.sum(-1).tolist() == [VOCAB, 0]


def test_auto_takes_the_gpu(start_server: Callable[..., Any]) -> None:
    running = start_server("--device", "auto", *SHIPPED_HERE)
    with Client(running.target) as client:
        assert client.apply(torch.zeros(1, VOCAB), [Request(processors=[(AddOneOnCuda, {})])]).logits.sum() == VOCAB
