"""Registrations that a client repeats at a server that lacks them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from logitport import DeadlineExceeded, LimitExceeded, LogitportError, NameTaken, ServerUnavailable, UnknownProcessor
from logitport.session.registrations import Registrations
from logitport_proto import registry_pb2


class Server:
    """A registry of payloads by digest, and of names. The digest of a payload is the payload itself."""

    Get, Register = "Get", "Register"

    def __init__(self, owner: str = "us") -> None:
        self.owner = owner
        self.kept: dict[str, registry_pb2.RegisterRequest] = {}
        self.owners: dict[str, str] = {}
        self.names: dict[str, str] = {}
        self.raises: dict[str, LogitportError] = {}
        self.calls: list[tuple[str, str]] = []

    def call(self, method: str, message: Any) -> Any:
        what = message.processor if method == "Get" else message.payload
        self.calls.append((method, what))
        if what in self.raises:
            raise self.raises[what]
        if method == "Register":
            if message.name and self.names.setdefault(message.name, what) != what:
                raise NameTaken(message.name)
            self.kept[what], self.owners[what] = message, self.owner
        elif what not in self.kept:
            raise UnknownProcessor(what)
        return SimpleNamespace(processor=registry_pb2.ProcessorInfo(digest=what, owner=self.owners[what]))


@pytest.fixture
def server() -> Server:
    return Server()


def registrations(server: Server, *registered: tuple[str, str], shared: bool = False) -> Registrations:
    """Registrations of a client that has registered payloads under names."""
    remembered = Registrations()
    for serialized, name in registered:
        message = registry_pb2.RegisterRequest(payload=serialized, name=name, shared=shared, replace=True)
        remembered.remember(message, registry_pb2.ProcessorInfo(digest=serialized, owner="us"))
    return remembered


def test_nothing_is_registered_at_a_server_that_has_everything(server: Server) -> None:
    server.call("Register", registry_pb2.RegisterRequest(payload="a"))
    server.calls.clear()
    assert registrations(server, ("a", "team/a")).restore(server.call) == {}
    assert server.calls == [("Get", "a")]
    assert server.names == {}, "the name may have been deleted since by another client"


def test_payloads_and_names_are_registered_again(server: Server) -> None:
    registrations(server, ("a", "team/a"), ("a", "team/b"), ("b", ""), shared=True).restore(server.call)
    assert server.names == {"team/a": "a", "team/b": "a"}
    assert set(server.kept) == {"a", "b"}
    assert all(kept.shared and not kept.replace for kept in server.kept.values())


def test_a_name_is_registered_with_its_latest_payload(server: Server) -> None:
    registrations(server, ("a", "team/x"), ("b", "team/x")).restore(server.call)
    assert server.names == {"team/x": "b"}
    assert set(server.kept) == {"a", "b"}


def test_a_name_that_is_bound_to_another_digest_is_left(server: Server) -> None:
    server.names["team/x"] = "theirs"
    assert registrations(server, ("a", "team/x"), ("a", "team/y")).restore(server.call) == {}
    assert server.names == {"team/x": "theirs", "team/y": "a"}


def test_a_payload_of_another_principal_is_registered_again(server: Server) -> None:
    server.owner = "others"
    server.call("Register", registry_pb2.RegisterRequest(payload="a"))
    server.owner = "us"
    registrations(server, ("a", "")).restore(server.call)
    assert server.owners == {"a": "us"}


@pytest.mark.parametrize(("deleted", "names", "kept"), [("a", {}, set()), ("team/a", {"team/b": "a"}, {"a"})])
def test_deleted_registrations_stay_deleted(
    server: Server, deleted: str, names: dict[str, str], kept: set[str]
) -> None:
    remembered = registrations(server, ("a", "team/a"), ("a", "team/b"))
    remembered.forget(deleted)
    remembered.restore(server.call)
    assert (server.names, set(server.kept)) == (names, kept)


def test_a_refused_registration_does_not_prevent_the_others(server: Server) -> None:
    server.raises["a"] = LimitExceeded("full")
    assert registrations(server, ("a", ""), ("b", "")).restore(server.call) == {"a": server.raises["a"]}
    assert set(server.kept) == {"b"}


@pytest.mark.parametrize("error", [ServerUnavailable, DeadlineExceeded])
def test_a_server_that_does_not_answer(server: Server, error: type[LogitportError]) -> None:
    server.raises["a"] = error("gone")
    with pytest.raises(error):
        registrations(server, ("a", ""), ("b", "")).restore(server.call)
