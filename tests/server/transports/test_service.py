"""Which thread processes the messages of calls, and the load that the service reports."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any, cast

import grpc
import pytest

from logitport.core.fair_threads import FairThreads
from logitport_proto import processing_pb2, registry_pb2
from logitport_server.access import Unparsed, current_call, messages
from logitport_server.access.guard import Call
from logitport_server.executors.output import OutputLog
from logitport_server.transports.service import LoopShare, ProcessingService, RegistryService
from logitport_server.transports.stream import SessionStream
from logitport_session.parsing import SMALL_BYTES
from logitport_session.principals import ANONYMOUS, Principal
from logitport_session.turns import Turns
from tests.waiting import SECONDS, wait_until

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

STEP = Unparsed(processing_pb2.SessionRequest(seq=1, step=processing_pb2.Step()).SerializeToString())
LARGE = Unparsed(
    processing_pb2.SessionRequest(seq=1, step=processing_pb2.Step(new_token_ids=bytes(SMALL_BYTES))).SerializeToString()
)


class Context:
    """A call with these messages, which have arrived."""

    def __init__(self, *frames: object) -> None:
        self._frames = [*frames, grpc.aio.EOF]
        self.written: list[object] = []

    def invocation_metadata(self) -> None:
        return None

    async def read(self) -> object:
        await asyncio.sleep(0)
        return self._frames.pop(0)

    async def write(self, reply: object) -> None:
        self.written.append(reply)

    def peer(self) -> str:
        return "ipv4:127.0.0.1:40312"


@pytest.fixture
def threads() -> Iterator[FairThreads]:
    made = FairThreads(8, "test")
    yield made
    made.close()


@pytest.fixture
def places(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Actions, each with the kind of its thread."""
    seen: list[tuple[str, str]] = []

    def record(what: str) -> None:
        loop = threading.current_thread() is threading.main_thread()
        seen.append((what, "loop" if loop else "thread"))

    def answer(self: object, frame: Any, transport: str, **_: object) -> processing_pb2.SessionResponse:
        record("answer")
        return processing_pb2.SessionResponse(seq=frame.seq)

    parse = messages.parse
    monkeypatch.setattr(messages, "parse", lambda *arguments: (record("parse"), parse(*arguments))[1])

    def close(self: object, *, finish: bool) -> None:
        record("close")

    monkeypatch.setattr(SessionStream, "answer", answer)
    monkeypatch.setattr(SessionStream, "close", close)
    return seen


@pytest.fixture
def compiled_steps(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kinds of the threads that process frames, all of which are short steps in the compiled core."""
    seen: list[str] = []

    def reply_compiled(self: object, data: bytes, *_: object, **__: object) -> bytes:
        seen.append("loop" if threading.current_thread() is threading.main_thread() else "thread")
        return data

    monkeypatch.setattr(SessionStream, "reply_compiled", reply_compiled)
    return seen


def principal(name: str) -> Principal:
    return Principal(name, ANONYMOUS.scopes)


async def nothing() -> None:
    """Do nothing."""


def run_sessions(
    threads: FairThreads, *sessions: tuple[str, tuple[object, ...]], beside: Callable[[], Awaitable[None]] = nothing
) -> list[Context]:
    """Run sessions of these principals and frames, and another coroutine, at the same time."""

    async def run(processing: ProcessingService, name: str, context: Context) -> None:
        current_call.set(Call(principal(name), lambda: None))
        await processing.Session(None, cast("Any", context))

    async def run_all() -> list[Context]:
        processing = ProcessingService(cast("Any", print), threads, cast("Any", None), None, Turns())
        contexts = [Context(*frames) for _, frames in sessions]
        names = [name for name, _ in sessions]
        runs = [run(processing, *session) for session in zip(names, contexts, strict=True)]
        await asyncio.gather(*runs, beside())
        return contexts

    return asyncio.run(run_all())


@pytest.mark.parametrize("frame", [STEP, LARGE])
def test_a_frame_is_processed_on_a_thread_whatever_its_size(
    threads: FairThreads, places: list[tuple[str, str]], frame: Unparsed
) -> None:
    """A small step may have long histories, or rewind many of them. Large states are freed on a thread, too."""
    (context,) = run_sessions(threads, ("alice", (frame,)))
    threads._pool.shutdown()
    assert places == [("parse", "thread"), ("answer", "thread"), ("close", "thread")]
    assert context.written == [processing_pb2.SessionResponse(seq=1).SerializeToString()]


def test_a_short_compiled_step_is_processed_on_the_event_loop(threads: FairThreads, compiled_steps: list[str]) -> None:
    (context,) = run_sessions(threads, ("alice", (STEP,)))
    assert compiled_steps == ["loop"]
    assert context.written == [STEP.data]


def test_the_event_loop_runs_during_a_step(threads: FairThreads, monkeypatch: pytest.MonkeyPatch) -> None:
    began, checked = threading.Event(), threading.Event()

    def answer(*_: object, **__: object) -> processing_pb2.SessionResponse:
        began.set()
        assert checked.wait(SECONDS)
        return processing_pb2.SessionResponse(seq=1)

    async def check() -> None:
        await asyncio.to_thread(began.wait, SECONDS)
        checked.set()

    monkeypatch.setattr(SessionStream, "answer", answer)
    (context,) = run_sessions(threads, ("alice", (STEP,)), beside=check)
    assert context.written == [processing_pb2.SessionResponse(seq=1).SerializeToString()]


def test_a_cancelled_session_counts_until_it_is_closed(threads: FairThreads, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its frame may end, and the session begin to close, just before the end of the call is noted."""
    began, answered, closing, closed = (threading.Event() for _ in range(4))
    ends: list[str] = []

    def answer(*_: object, **__: object) -> processing_pb2.SessionResponse:
        began.set()
        assert answered.wait(SECONDS)
        return processing_pb2.SessionResponse(seq=1)

    def close(*_: object, **__: object) -> None:
        closing.set()
        assert closed.wait(SECONDS)

    monkeypatch.setattr(SessionStream, "answer", answer)
    monkeypatch.setattr(SessionStream, "close", close)

    async def run() -> None:
        call = Call(principal("alice"), lambda: ends.append("alice"))
        release = call.hold()
        current_call.set(call)
        processing = ProcessingService(cast("Any", print), threads, cast("Any", None), None, Turns())
        session = asyncio.create_task(processing.Session(None, cast("Any", Context(STEP))))
        await asyncio.to_thread(began.wait, SECONDS)
        session.cancel()
        with pytest.raises(asyncio.CancelledError):
            await session
        answered.set()
        assert await asyncio.to_thread(closing.wait, SECONDS)
        assert call.work is not None
        call.work.add_done_callback(release)  # as `Guard` does

    asyncio.run(run())
    assert ends == []
    closed.set()
    wait_until(lambda: ends)
    assert ends == ["alice"]


def test_a_principal_has_one_frame_at_a_time_on_the_event_loop(threads: FairThreads, compiled_steps: list[str]) -> None:
    run_sessions(threads, *[("alice", (STEP,))] * 3, ("bob", (STEP,)))
    assert sorted(compiled_steps) == ["loop", "loop", "thread", "thread"]


def test_a_principal_that_is_alone_may_use_the_event_loop(threads: FairThreads, compiled_steps: list[str]) -> None:
    run_sessions(threads, *[("alice", (STEP,))] * 3)
    assert compiled_steps == ["loop"] * 3


def test_the_share_of_the_loop_is_for_one_iteration() -> None:
    async def take() -> list[bool]:
        share = LoopShare()
        taken = [share.take("alice"), share.take("alice"), share.take("bob")]
        await asyncio.sleep(0)
        return [*taken, share.take("alice")]

    assert asyncio.run(take()) == [True, False, True, True]


def test_a_large_registration_is_parsed_on_a_thread_in_turn(
    threads: FairThreads, places: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    on_loop, with_turn = [], []
    turns = Turns()

    def parse(kind: Any, data: bytes) -> Any:
        on_loop.append(threading.current_thread() is threading.main_thread())
        holder = turns._aside._holder if turns._aside is not None else None
        with_turn.append(holder is not None and holder.principal)
        return kind.FromString(data)

    class Registered:
        id = "one"

        def register(self, serialized: str, name: str, *_: object, **__: object) -> registry_pb2.ProcessorInfo:
            return registry_pb2.ProcessorInfo(names=[name], size_bytes=len(serialized))

    async def register() -> registry_pb2.RegisterResponse:
        current_call.set(Call(principal("alice"), lambda: None))
        request = registry_pb2.RegisterRequest(name="a/b", payload="x" * SMALL_BYTES)
        unparsed = Unparsed(request.SerializeToString())
        registry = RegistryService(cast("Any", Registered()), threads, turns, OutputLog())
        return await registry.Register(unparsed, cast("Any", None))

    monkeypatch.setattr(messages, "parse", parse)
    assert asyncio.run(register()).processor == registry_pb2.ProcessorInfo(names=["a/b"], size_bytes=SMALL_BYTES)
    assert (on_loop, with_turn) == ([False], ["alice"])


def test_the_load_is_reported() -> None:
    class Load:
        def load(self) -> tuple[int, int]:
            return 2, 65

    async def loads() -> list[processing_pb2.GetLoadResponse]:
        def accepts(caller: Principal) -> bool:
            return caller.name == "alice"

        processing = ProcessingService(
            cast("Any", print), cast("Any", None), cast("Any", Load()), None, Turns(), accepts
        )
        replies = []
        for name, drained in (("alice", False), ("bob", False), ("alice", True)):
            current_call.set(Call(principal(name), lambda: None))
            if drained:
                processing.drain()
            replies.append(await processing.GetLoad(processing_pb2.GetLoadRequest(), cast("Any", None)))
        return replies

    replies = asyncio.run(loads())
    assert [(reply.sessions, reply.requests) for reply in replies] == [(2, 65)] * 3
    assert [reply.accepts_sessions for reply in replies] == [True, False, False]


def test_sessions_that_are_being_opened_are_load(threads: FairThreads) -> None:
    """Many engines that lose a server at the same time would otherwise choose the same one."""

    class Load:
        def load(self) -> tuple[int, int]:
            return 0, 0

    async def loads() -> list[int]:
        processing = ProcessingService(cast("Any", print), threads, cast("Any", Load()), None, Turns())
        current_call.set(Call(principal("alice"), lambda: None))

        async def load() -> int:
            return (await processing.GetLoad(processing_pb2.GetLoadRequest(), cast("Any", None))).sessions

        opening = [asyncio.create_task(processing.Session(None, cast("Any", Context()))) for _ in range(3)]
        await asyncio.sleep(0)
        during = await load()
        await asyncio.gather(*opening)
        return [during, await load()]

    assert asyncio.run(loads()) == [3, 0]
