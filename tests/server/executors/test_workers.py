"""Workers as processes: whose they are, how they end, and what the server makes of what they send."""

from __future__ import annotations

import gc
import os
import pickle
import socket
import threading
import time
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock
from weakref import ref

import orjson
import pytest
import torch

from logitport import (
    CustomLogitProcessor,
    EditProcessor,
    History,
    LimitExceeded,
    LogitportError,
    ProcessorFailed,
    ProcessorTimedOut,
    RowEdits,
)
from logitport_server.dialects import RequestContext
from logitport_server.dialects.base import by_row
from logitport_server.dialects.failures import WorkerLost
from logitport_server.executors import Deadlines, ProcessExecutor
from logitport_server.executors.worker import Worker
from logitport_server.executors.zygote import NoAnswer, WorkerGone, WorkerProcess
from logitport_server.registry import loader
from logitport_server.sandbox import LAYERS
from logitport_server.worker import frames, messages

if TYPE_CHECKING:
    from collections.abc import Callable

    from logitport import EditRequest
    from logitport_server.registry.source import Source

    Ship = Callable[..., Source]

VOCAB = 64

EDIT = messages.Edit(processor=1, vocab_size=VOCAB)
HOST = messages.Host(processor=1, name="", digest="", python="", dill="")
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


class TellsPid(EditProcessor):
    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        import logitport_server.worker.serve as serving

        edits.bias([0, 1], [float(len(vars(serving).get("neighbours", []))), 0.0])
        vars(serving).setdefault("neighbours", []).append(1)


class Leaves(CustomLogitProcessor):
    def __call__(self, logits: torch.Tensor, custom_param_list: Any = None) -> torch.Tensor:
        os._exit(7)


def neighbours(executor: ProcessExecutor, source: Source) -> int:
    """How often processors of this source's worker were called before."""
    dialect = executor.host(source)
    state = dialect.start(RequestContext("r", History([1]), {}, VOCAB), {})
    said = by_row(dialect.edit([state]), 1)
    ((_, _, values),) = said[0]
    assert values is not None
    return int(values[0])


def test_one_worker_a_trust_domain(workers: ProcessExecutor, ship: Ship) -> None:
    assert [neighbours(workers, ship(TellsPid, tenant="x")) for _ in range(3)] == [0, 1, 2]
    assert neighbours(workers, ship(TellsPid, tenant="y")) == 0
    assert neighbours(workers, ship(TellsPid, tenant="x")) == 3


def test_the_server_never_unpickles(workers: ProcessExecutor, ship: Ship, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("unpickled in the server")

    source = ship(TellsPid, tenant="z")
    monkeypatch.setattr(loader.payload, "loads", refuse)
    monkeypatch.setattr(loader, "_unpickle", refuse)
    for name in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(pickle, name, refuse)
    assert neighbours(workers, source) == 0


def test_a_worker_is_killed_from_outside_between_calls(workers: ProcessExecutor, ship: Ship) -> None:
    """Nobody is to blame: the next call goes on in another process."""
    source = ship(TellsPid, tenant="killed")
    dialect = workers.host(source)
    state = dialect.start(RequestContext("r", History([1]), {}, VOCAB), {})
    worker = dialect._worker  # type: ignore[attr-defined]
    first = worker.process()
    first.kill()
    while first.alive:
        time.sleep(0.01)
    said = by_row(dialect.edit([state]), 1)
    assert said[0]
    assert worker.process() is not first
    assert not workers.quarantine.reason(source.key)


class Counts(CustomLogitProcessor):
    """Keeps state that no history gives back."""

    def __call__(self, logits: torch.Tensor, custom_param_list: Any = None) -> torch.Tensor:
        custom_param_list[0]["calls"] = 1
        return logits


def test_what_became_of_lost_state_does_not_keep_the_processor(workers: ProcessExecutor, ship: Ship) -> None:
    """Its memory is shared with the worker, and an idle server collects no garbage."""
    dialect = workers.host(ship(Counts, tenant="lost"))
    state = dialect.start(RequestContext("r", History([1]), {}, VOCAB), {})
    dialect.process([state], torch.zeros(1, VOCAB))
    process = dialect._worker.process()  # type: ignore[attr-defined]
    process.kill()
    while process.alive:
        time.sleep(0.01)
    with suppress(LogitportError):
        dialect.process([state], torch.zeros(1, VOCAB))
    assert dialect.failed
    gc.disable()
    try:
        held = ref(dialect)
        del dialect, state
        assert held() is None
    finally:
        gc.enable()


def test_many_threads_share_a_worker(workers: ProcessExecutor, ship: Ship) -> None:
    counted: list[int] = []
    threads = [
        threading.Thread(target=lambda: counted.append(neighbours(workers, ship(TellsPid, tenant="many"))))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(counted) == list(range(8))


def test_who_is_busy_is_not_waited_for(workers: ProcessExecutor, ship: Ship) -> None:
    dialect = workers.host(ship(TellsPid, tenant="busy"))
    state = dialect.start(RequestContext("r", History([1]), {}, VOCAB), {})
    with dialect._worker.lock:  # type: ignore[attr-defined]
        assert not dialect.begin([state], None)
    assert dialect.begin([state], None)
    dialect.edit([state])


def test_a_call_that_nobody_ends_does_not_block_the_worker(workers: ProcessExecutor, ship: Ship) -> None:
    dialect = workers.host(ship(TellsPid, tenant="abandoned"))
    state = dialect.start(RequestContext("r", History([1]), {}, VOCAB), {})
    assert dialect.begin([state], None)
    dialect.abandon()
    dialect.abandon()
    dialect.edit([state])


def test_what_costs_a_worker_is_not_tried_again_row_by_row(workers: ProcessExecutor, ship: Ship) -> None:
    dialect = workers.host(ship(Leaves, tenant="leaves"))
    states = [dialect.start(RequestContext("r", History([1]), {}, VOCAB), {}) for _ in range(2)]
    with pytest.raises(WorkerLost, match="ended with status 7") as raised:
        dialect.process(states, torch.zeros(2, VOCAB))
    assert isinstance(raised.value, ProcessorFailed)


class Stranger:
    """What a worker's end of the socket may be after a processor has got hold of it."""

    def __init__(self) -> None:
        self.end, ours = socket.socketpair()
        pidfd = os.pidfd_open(os.getpid())
        self.ended: Future[int] = Future()
        self.process = WorkerProcess(ours, pidfd, self.ended)
        self.process.kill = lambda: None  # type: ignore[method-assign]

    def answer(self, octets: bytes) -> Any:
        self.process.send(EDIT, [], [], 60.0)
        self.end.sendall(octets)
        return self.process.receive()


@pytest.fixture
def stranger() -> Any:
    made = Stranger()
    yield made
    made.end.close()
    made.process.close()


@pytest.mark.parametrize(
    "octets",
    [
        b"\xff" * 64,
        frames.pack(2, REPLY),
        frames.pack(1, b""),
        frames.pack(1, b"{}"),
        frames.pack(1, b"[" * 100_000),
        frames.pack(1, b'{"type":"EditReply","x":' + b"[" * 100_000),
        frames.pack(1, b'{"type":"Edit","processor":1,"vocab_size":8}'),
        frames.pack(1, b'{"type":"EditReply","failed":{"-1":{"code":1,"message":"","trace":""}}}'),
        frames.pack(1, b'{"type":"ErrorReply","error":{"code":1,"message":"\xff","trace":""}}'),
        frames.pack(1, REPLY) + frames.pack(1, REPLY),
        pickle.dumps({"call": 1}),
    ],
)
def test_what_is_no_answer_ends_the_worker(stranger: Stranger, octets: bytes) -> None:
    with pytest.raises(WorkerGone):
        stranger.answer(octets)


def test_the_deadline_holds_whatever_trickles_in(stranger: Stranger) -> None:
    frame, over = frames.pack(1, REPLY, [bytes(1 << 16)]), threading.Event()
    stranger.process.send(EDIT, [], [], 0.3)

    def trickle() -> None:  # for twenty minutes
        for octet in frame:
            if over.wait(0.02):
                return
            stranger.end.sendall(bytes([octet]))

    thread = threading.Thread(target=trickle)
    thread.start()
    try:
        with pytest.raises(NoAnswer):
            stranger.process.receive()
    finally:
        over.set()
        thread.join()


def test_a_worker_that_does_not_read(stranger: Stranger) -> None:
    with pytest.raises(NoAnswer):
        stranger.process.send(HOST, [bytes(1 << 24)], [], 0.2)


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
def test_answers_that_make_no_sense_cost_the_worker_and_its_requests(
    workers: ProcessExecutor, ship: Ship, monkeypatch: pytest.MonkeyPatch, reply: dict[str, Any], columns: list[bytes]
) -> None:
    source = ship(TellsPid, tenant="liar")
    workers.quarantine.lift(source.key)
    dialect = workers.host(source)
    state = dialect.start(RequestContext("r", History([1]), {}, VOCAB), {})
    process = dialect._process  # type: ignore[attr-defined]
    genuine = frames.read

    def lie(*arguments: Any) -> frames.Frame:
        call, _, _ = genuine(*arguments)
        return frames.Frame(call, memoryview(orjson.dumps(reply)), [memoryview(column) for column in columns])

    with monkeypatch.context() as patched:
        patched.setattr(frames, "read", lie)
        with pytest.raises(WorkerLost, match="its worker sent "):
            dialect.edit([state])
    assert dialect._worker._process is not process  # type: ignore[attr-defined]
    said = by_row(dialect.edit([state]), 1)
    assert said[0]


def test_workers_are_limited_and_idle_ones_make_room(ship: Ship) -> None:
    missing = [layer.name for layer in LAYERS if layer.missing() is not None]
    executor = ProcessExecutor(Deadlines(60.0, 200.0), quarantine_after=3, max_workers=2, without=missing)
    try:
        executor.ready()
        kept = [executor.host(ship(TellsPid, tenant=tenant)) for tenant in ("a", "b")]
        with pytest.raises(LimitExceeded, match=r"2 workers are in use.*--max-workers"):
            executor.host(ship(TellsPid, tenant="c"))
        assert executor.host(ship(TellsPid, tenant="a"))
        del kept[0]
        gc.collect()
        assert neighbours(executor, ship(TellsPid, tenant="c")) == 0
        assert executor.running == 2
    finally:
        executor.close()


def test_a_zygote_that_ends_is_launched_again(ship: Ship) -> None:
    missing = [layer.name for layer in LAYERS if layer.missing() is not None]
    executor = ProcessExecutor(Deadlines(60.0, 200.0), quarantine_after=3, without=missing)
    try:
        executor.ready()
        dialect = executor.host(ship(TellsPid))
        state = dialect.start(RequestContext("r", History([1]), {}, VOCAB), {})
        process = dialect._worker.process()  # type: ignore[attr-defined]
        for parent in executor._zygotes.values():
            parent._process.kill()
        while process.alive:
            time.sleep(0.01)
        said = by_row(dialect.edit([state]), 1)
        assert said[0]
        assert not executor.quarantine.failures
    finally:
        executor.close()


@pytest.mark.parametrize(
    ("call", "seconds", "told"),
    [
        (HOST, 10.0, r"loading it took over 10 s \(--load-timeout-seconds\)"),
        (HOST, 2.0, r"loading it took over 2 s \(--processor-timeout-seconds\)"),  # within a step
        (START, 1.5, r"its start took over 1\.5 s \(--processor-timeout-seconds\)"),
        (EDIT, 2.0, r"its call took over 2 s \(--processor-timeout-seconds\), and its worker was ended: look for a"),
    ],
)
def test_what_took_too_long_is_named_with_the_option(
    ship: Ship, call: messages.Call, seconds: float, told: str
) -> None:
    worker = Worker(None, Mock(), Deadlines(2.0, 10.0), Mock())
    process = Mock(send=Mock(side_effect=NoAnswer))
    with pytest.raises(ProcessorTimedOut, match=told):
        worker.send(process, ship(TellsPid), call, seconds=seconds)
