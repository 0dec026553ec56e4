"""Registrations that a client repeats at a server that lacks them."""

from __future__ import annotations

from typing import Any

import pytest

from logitport import LimitExceeded, LogitportError, NameTaken, ServerUnavailable
from logitport.session.failover.registrations import Registrations
from logitport_proto import registry_pb2


class Server:
    """A registry of payloads by digest, and of names. The digest of a payload is the payload itself."""

    def __init__(self, owner: str = "us", registry_id: str = "one") -> None:
        self.owner = owner
        self.registry_id = registry_id
        self.kept: dict[str, registry_pb2.RegisterRequest] = {}
        self.owners: dict[str, str] = {}
        self.names: dict[str, str] = {}
        self.raises: dict[str, LogitportError] = {}  # in any call
        self.refuses: dict[str, LogitportError] = {}  # in registrations
        self.calls: list[str] = []

    def call(self, method: str, message: Any) -> Any:
        self.calls.append(method)
        for digest in message.digests if method == "List" else [message.payload]:
            if digest in self.raises:
                raise self.raises[digest]
        if method == "Register":
            if message.payload in self.refuses:
                raise self.refuses[message.payload]
            if message.name and self.names.setdefault(message.name, message.payload) != message.payload:
                raise NameTaken(message.name)
            self.kept[message.payload], self.owners[message.payload] = message, self.owner
            return registry_pb2.RegisterResponse(processor=self.info(message.payload), registry_id=self.registry_id)
        found = [self.info(digest) for digest in message.digests if digest in self.kept]
        return registry_pb2.ListResponse(processors=found, registry_id=self.registry_id)

    def info(self, digest: str) -> registry_pb2.ProcessorInfo:
        names = sorted(name for name, bound in self.names.items() if bound == digest)
        return registry_pb2.ProcessorInfo(digest=digest, owner=self.owners[digest], names=names)

    def delete(self, digest: str) -> None:
        del self.kept[digest]
        self.names = {name: bound for name, bound in self.names.items() if bound != digest}


@pytest.fixture
def server() -> Server:
    return Server()


def registrations(*registered: tuple[str, str], shared: bool = False, registry_id: str = "lost") -> Registrations:
    """Registrations of a client that has registered payloads under names, by default in another registry."""
    remembered = Registrations()
    for serialized, name in registered:
        message = registry_pb2.RegisterRequest(payload=serialized, name=name, shared=shared, replace=True)
        remembered.remember(message, registry_pb2.ProcessorInfo(digest=serialized, owner="us"), registry_id)
    return remembered


def test_nothing_is_registered_at_a_server_that_has_everything(server: Server) -> None:
    server.call("Register", registry_pb2.RegisterRequest(payload="a"))
    server.calls.clear()
    assert registrations(("a", "team/a")).restore(server.call) == {}
    assert server.calls == ["List"]
    assert server.names == {}, "the name may have been deleted since by another client"


def test_payloads_and_names_are_registered_again(server: Server) -> None:
    registrations(("a", "team/a"), ("a", "team/b"), ("b", ""), shared=True).restore(server.call)
    assert server.names == {"team/a": "a", "team/b": "a"}
    assert set(server.kept) == {"a", "b"}
    assert all(kept.shared and not kept.replace for kept in server.kept.values())


def test_a_name_is_registered_with_its_latest_payload(server: Server) -> None:
    registrations(("a", "team/x"), ("b", "team/x")).restore(server.call)
    assert server.names == {"team/x": "b"}
    assert set(server.kept) == {"a", "b"}


def test_a_name_that_is_bound_to_another_digest_is_left(server: Server) -> None:
    server.names["team/x"] = "theirs"
    assert registrations(("a", "team/x"), ("a", "team/y")).restore(server.call) == {}
    assert server.names == {"team/x": "theirs", "team/y": "a"}


def test_a_payload_of_another_principal_is_registered_again(server: Server) -> None:
    server.owner = "others"
    server.call("Register", registry_pb2.RegisterRequest(payload="a"))
    server.owner = "us"
    registrations(("a", "")).restore(server.call)
    assert server.owners == {"a": "us"}


@pytest.mark.parametrize(("deleted", "names", "kept"), [("a", {}, set()), ("team/a", {"team/b": "a"}, {"a"})])
def test_deleted_registrations_stay_deleted(
    server: Server, deleted: str, names: dict[str, str], kept: set[str]
) -> None:
    remembered = registrations(("a", "team/a"), ("a", "team/b"))
    remembered.forget(deleted)
    remembered.restore(server.call)
    assert (server.names, set(server.kept)) == (names, kept)


@pytest.mark.parametrize("how", ["registered", "restored", "registered twice"])
def test_what_another_client_has_deleted_stays_deleted(server: Server, how: str) -> None:
    """Also in registries that have not had it: all registries of a fleet may end and begin again."""
    remembered = registrations(("a", "team/a"), ("b", "team/b"), registry_id="one" if how == "registered" else "lost")
    if how == "registered twice":
        remembered.registered_in("one", "a", "team/a")
        remembered.registered_in("one", "b", "team/b")
    for digest in ("a", "b"):
        server.call("Register", registry_pb2.RegisterRequest(payload=digest, name=f"team/{digest}"))
    remembered.restore(server.call)
    server.delete("a")
    other = Server(registry_id="two")
    for registry in (server, other, server):
        assert remembered.restore(registry.call) == {}
        assert set(registry.kept) == {"b"}
        assert registry.names == {"team/b": "b"}
    assert not remembered.has("a")


def test_a_name_that_another_client_has_deleted_stays_deleted(server: Server) -> None:
    remembered = registrations(("a", "team/a"), ("a", "team/b"))
    remembered.restore(server.call)
    del server.names["team/a"]
    other = Server(registry_id="two")
    for registry in (server, other):
        remembered.restore(registry.call)
        assert registry.names == {"team/b": "a"}


def test_a_registration_after_a_deletion(server: Server) -> None:
    """The one server was called, the other has deleted it before."""
    other = Server(registry_id="two")
    remembered = registrations(("a", "team/a"))
    for registry in (server, other):
        remembered.restore(registry.call)
        registry.delete("a")
    message = registry_pb2.RegisterRequest(payload="a", name="team/a")
    remembered.remember(message, server.call("Register", message).processor, "one")
    for registry in (server, other):
        remembered.restore(registry.call)
        assert registry.names == {"team/a": "a"}


def test_registries_are_remembered_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("logitport.session.failover.registrations._MAX_REGISTRIES", 2)
    remembered = registrations(("a", ""))
    servers = [Server(registry_id=str(place)) for place in range(3)]
    for server in servers:
        remembered.restore(server.call)
    assert len(remembered._had) == 2


def test_a_refused_registration_does_not_prevent_the_others(server: Server) -> None:
    server.refuses["a"] = LimitExceeded("full")
    assert registrations(("a", ""), ("b", "")).restore(server.call) == {"a": server.refuses["a"]}
    assert set(server.kept) == {"b"}


def test_a_registry_that_cannot_be_read(server: Server) -> None:
    server.raises["a"] = LogitportError("the server's store cannot be used")
    remembered = registrations(("a", ""), ("b", ""))
    assert set(remembered.restore(server.call)) == {"a", "b"}
    assert remembered.has("a")


@pytest.mark.parametrize("error", [ServerUnavailable])
def test_a_server_that_does_not_answer(server: Server, error: type[LogitportError]) -> None:
    server.raises["a"] = error("gone")
    with pytest.raises(error):
        registrations(("a", ""), ("b", "")).restore(server.call)
