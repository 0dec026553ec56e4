"""Calls without a session: to several servers, some of which cannot be reached, and by several threads."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from logitport import AccessDenied, Client, EditProcessor, LogitportError, ServerUnavailable
from logitport.client import session_opening
from logitport.errors import METADATA_KEY
from logitport_proto import registry_pb2, registry_pb2_grpc
from tests.conftest import free_address

if TYPE_CHECKING:
    from collections.abc import Iterator


class Registry(registry_pb2_grpc.ProcessorRegistryServicer):
    """Has no processors. Aborts its first calls with a status, after it has received them."""

    def __init__(self, *aborts: grpc.StatusCode) -> None:
        self._aborts = list(aborts)
        self.calls: list[str] = []

    def List(self, request: Any, context: grpc.ServicerContext) -> registry_pb2.ListResponse:  # noqa: N802
        self._called("List", context)
        return registry_pb2.ListResponse()

    def Delete(self, request: Any, context: grpc.ServicerContext) -> registry_pb2.DeleteResponse:  # noqa: N802
        self._called("Delete", context)
        return registry_pb2.DeleteResponse()

    def _called(self, method: str, context: grpc.ServicerContext) -> None:
        self.calls.append(method)
        if self._aborts:
            context.abort(self._aborts.pop(0), "the stream was lost")


@contextmanager
def serving(address: str, registry: Registry) -> Iterator[None]:
    with ThreadPoolExecutor(2) as threads:
        server = grpc.server(threads)
        registry_pb2_grpc.add_ProcessorRegistryServicer_to_server(registry, server)  # type: ignore[no-untyped-call]
        assert server.add_insecure_port(address)
        server.start()
        try:
            yield
        finally:
            server.stop(None).wait()


def call(targets: list[str], method: str, *arguments: str) -> Any:
    with Client(targets) as client:
        return getattr(client, method)(*arguments)


@pytest.mark.slow
def test_no_server_can_be_reached() -> None:
    with pytest.raises(ServerUnavailable, match="no connection to"):
        call([free_address(), free_address()], "processors")


def test_a_call_that_must_not_be_made_twice() -> None:
    """The server may have received it before the connection was lost."""
    targets = [free_address(), free_address()]
    registries = [Registry(grpc.StatusCode.UNAVAILABLE) for _ in targets]
    with serving(targets[0], registries[0]), serving(targets[1], registries[1]):
        with pytest.raises(ServerUnavailable):
            call(targets, "delete", "team/x")
        assert sum(len(registry.calls) for registry in registries) == 1
        call(targets, "processors")


def test_an_error_of_the_server_is_not_repeated() -> None:
    targets = [free_address(), free_address()]
    registry = Registry(grpc.StatusCode.UNIMPLEMENTED)
    with serving(targets[0], registry), serving(targets[1], registry):
        with pytest.raises(LogitportError, match="UNIMPLEMENTED"):
            call(targets, "processors")
        assert registry.calls == ["List"]


@pytest.mark.parametrize("method", [("processors",), ("delete", "team/x")])
def test_a_server_that_does_not_know_the_token_yet(method: tuple[str, ...]) -> None:
    """It has not done anything, so every call may be sent to another server."""
    targets = [free_address() for _ in range(3)]
    refusing = Registry(*[grpc.StatusCode.UNAUTHENTICATED] * 100)
    good = Registry()
    with serving(targets[0], refusing), serving(targets[1], refusing), serving(targets[2], good):
        for _ in range(5):
            assert not call(targets, *method)
    assert len(good.calls) == 5


def test_a_token_that_no_server_knows() -> None:
    targets = [free_address() for _ in range(3)]
    refusing = Registry(*[grpc.StatusCode.UNAUTHENTICATED] * 100)
    with serving(targets[0], refusing), serving(targets[1], refusing), serving(targets[2], refusing):
        with pytest.raises(AccessDenied):
            call(targets, "processors")
        assert len(refusing.calls) == 3, "one for each server"


class WrongMetadata(Registry):
    """Sends something else where an error is expected."""

    def List(self, request: Any, context: grpc.ServicerContext) -> registry_pb2.ListResponse:  # noqa: N802
        context.set_trailing_metadata(((METADATA_KEY, b"\xff\xff"),))
        context.abort(grpc.StatusCode.FAILED_PRECONDITION, "something else")
        raise AssertionError("abort raises")


def test_an_error_that_cannot_be_read() -> None:
    target = free_address()
    with serving(target, WrongMetadata()), pytest.raises(LogitportError, match="FAILED_PRECONDITION: something else"):
        call([target], "processors")


def call_and_drop(targets: list[str]) -> weakref.ref[Client]:
    client = Client(targets)
    with suppress(LogitportError):
        client.processors()
    return weakref.ref(client)


@pytest.mark.slow
@pytest.mark.parametrize(("bad", "good"), [(1, 0), (2, 0), (1, 1)], ids=["fails", "fails elsewhere", "works elsewhere"])
def test_a_dropped_client_is_deleted_at_once(bad: int, good: int) -> None:
    """Its connections are open until then. The garbage collector may not run for long."""
    targets = [free_address() for _ in range(bad + good)]
    with ExitStack() as stack:
        for target in targets[:bad]:
            stack.enter_context(serving(target, Registry(*[grpc.StatusCode.UNAVAILABLE] * 100)))
        for target in targets[bad:]:
            stack.enter_context(serving(target, Registry()))
        gc.collect()
        gc.disable()
        try:
            # A random server is called first: several clients, so that one of them calls the bad one first.
            assert [call_and_drop(targets)() for _ in range(8 if good else 1)] == [None] * (8 if good else 1)
        finally:
            gc.enable()


NOWHERE = ["127.0.0.1:1", "127.0.0.1:2"]


class Opened:
    """In place of a session."""

    def close(self) -> None:
        pass


@pytest.fixture
def _often() -> Iterator[None]:
    """Threads take turns as often as possible."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-7)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("_often")
@pytest.mark.parametrize("method", ["logs", "close"])
def test_a_call_while_sessions_are_opened(monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    def unavailable(*_: Any) -> None:
        raise ServerUnavailable("nothing is sent")

    monkeypatch.setattr(session_opening, "open_session", lambda *_, **__: (Opened(), SimpleNamespace(server=None)))
    monkeypatch.setattr("logitport.client.call_sender.CallSender.reply", unavailable)
    client, kept = Client(NOWHERE), []
    ends = threading.Event()

    def opens() -> None:
        while not ends.is_set():
            kept.append(client.session(vocab_size=4))

    threads = [threading.Thread(target=opens) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(30):
            if method == "close":
                client.close()
            else:
                with pytest.raises(ServerUnavailable):
                    client.logs("a/b")
    finally:
        ends.set()
        for thread in threads:
            thread.join()
        client.close()


class Denies(EditProcessor):
    def edit(self, request: Any, edits: Any) -> None:
        edits.deny([1])


@pytest.mark.parametrize(("deleted", "repeated"), [("name", [""]), ("digest", [])])
def test_what_was_deleted_at_one_server_is_not_registered_again(
    client: Client, deleted: str, repeated: list[str]
) -> None:
    registered = client.register(Denies, name="team/denies", replace=True)
    client.servers()[0].delete("team/denies" if deleted == "name" else registered.digest)
    names = []

    def next_server(method: str, message: Any) -> Any:
        if method == "Register":
            names.append(message.name)
        return registry_pb2.ListResponse(registry_id="next") if method == "List" else registry_pb2.RegisterResponse()

    client._registrations.restore(next_server)
    assert names == repeated
