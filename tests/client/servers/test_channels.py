"""The choice among several servers."""

from __future__ import annotations

import gc
import queue
import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from logitport import AccessDenied, Client, InvalidArgument, LogitportError, ServerUnavailable, Tls
from logitport.servers.channels import Answer, Load, ServerChannel, Servers
from logitport.servers.connection import Connection
from logitport.servers.targets import AddressList, source_of
from logitport.session.failover.registrations import Registrations
from logitport.session.failover.server_choice import ServerChoice
from logitport_proto import processing_pb2_grpc, registry_pb2
from tests.client.scripted import Script
from tests.clock import Clock

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class Fake(ServerChannel):
    """A server that answers as the test says."""

    def __init__(self, cluster: Cluster, address: Any) -> None:
        self.address = address
        self.target = address.target
        self.channel = object()
        self._cluster = cluster

    def request_load(self, take_answer: Callable[[Answer], object]) -> None:
        self._cluster.asked.append(self.target)
        answer = self._cluster.answers[self.target]
        if self.target in self._cluster.slow:
            self._cluster.late.append(lambda: take_answer(answer))
        else:
            take_answer(answer)


class Cluster:
    """Servers a:1, b:1, ..., of which each has a load of 0 and accepts sessions."""

    def __init__(self, count: int, seed: int = 0) -> None:
        self.listed = [f"{letter}:1" for letter in "abcdefghijklmnopqrstuvwxyz"[:count]]
        self.answers: dict[str, Answer] = dict.fromkeys(self.listed, Load(0, accepts_sessions=True))
        self.asked: list[str] = []
        self.slow: set[str] = set()
        self.late: list[Callable[[], object]] = []  # answers of slow servers
        self.clock = Clock(1000.0)
        addresses = AddressList(source_of(lambda: self.listed), lambda _: None, self.clock)
        self.servers = Servers(addresses, lambda it: Fake(self, it), clock=self.clock, rng=random.Random(seed))

    def lose(self, *targets: str) -> None:
        for target in targets:
            self.answers[target] = ServerUnavailable(f"no connection to {target}")

    def any(self, excluded: ServerChannel | None = None) -> str:
        return self.servers.any(excluded).target

    def session(self, excluded: ServerChannel | None = None) -> str:
        return self.servers.least_loaded(excluded).target

    def server(self, target: str) -> ServerChannel:
        return next(it for it in iter(self.servers.any, None) if it.target == target)


def ended_stream() -> Script:
    script = Script()
    script.close()
    return script


def test_a_server_that_failed_is_set_aside_longer_each_time() -> None:
    cluster = Cluster(2)
    lost = cluster.server("a:1")
    for least, most in [(2, 3), (4, 6), (8, 12), (16, 24), (30, 45), (30, 45)]:
        cluster.servers.failed(lost)
        cluster.clock.now += least - 0.01
        assert {cluster.any() for _ in range(50)} == {"b:1"}
        cluster.clock.now += most - least + 0.02
        assert {cluster.any() for _ in range(50)} == {"a:1", "b:1"}
    cluster.servers.worked(lost)
    cluster.servers.failed(lost)
    cluster.clock.now += 3.01
    assert {cluster.any() for _ in range(50)} == {"a:1", "b:1"}


def test_one_loss_is_one_failure() -> None:
    """Also if many sessions of a client had the same server."""
    cluster = Cluster(2)
    lost = cluster.server("a:1")
    for _ in range(8):
        cluster.servers.failed(lost)
    cluster.clock.now += 3.01
    assert {cluster.any() for _ in range(50)} == {"a:1", "b:1"}


def test_the_time_aside_is_random() -> None:
    """Clients that lost the same server must not all return to it at once."""
    back = Counter[bool]()
    for seed in range(60):
        cluster = Cluster(2, seed)
        cluster.servers.failed(cluster.server("a:1"))
        cluster.clock.now += 2.5
        back["a:1" in {cluster.any() for _ in range(50)}] += 1
    assert back[True] > 10
    assert back[False] > 10


def test_the_server_that_failed_is_not_tried_next() -> None:
    cluster = Cluster(2)
    for target in cluster.listed:
        cluster.servers.failed(cluster.server(target))
    lost = cluster.server("a:1")
    assert {cluster.any(excluded=lost) for _ in range(50)} == {"b:1"}
    assert {cluster.session(excluded=lost) for _ in range(50)} == {"b:1"}
    alone = Cluster(1)
    assert alone.any(excluded=alone.server("a:1")) == "a:1"


def test_a_session_is_on_the_less_loaded_of_two() -> None:
    cluster = Cluster(4)
    for place, target in enumerate(cluster.listed):
        cluster.answers[target] = Load(place, accepts_sessions=True)
    counts = Counter(cluster.session() for _ in range(600))
    # Of 6 pairs: the least loaded one wins 3, then 2, 1 and 0.
    assert counts["a:1"] > counts["b:1"] > counts["c:1"] > 50
    assert counts["d:1"] == 0
    assert len(cluster.asked) == 1200, "two for each session"


@pytest.mark.parametrize("answer", [None, ServerUnavailable("down"), Load(0, accepts_sessions=False)])
@pytest.mark.parametrize("good", ["a:1", "c:1", "e:1"])
def test_one_of_many_servers_can_be_used(answer: Answer, good: str) -> None:
    cluster = Cluster(5)
    cluster.answers = dict.fromkeys(cluster.listed, answer)
    cluster.answers[good] = Load(1000, accepts_sessions=True)
    for _ in range(5):
        assert cluster.session() == good
    others = [target for target in cluster.listed if target != good]
    if not isinstance(answer, Load):
        assert {cluster.any() for _ in range(20)} == {good}, "the others are set aside"
        assert max(Counter(cluster.asked)[target] for target in others) <= 1


def test_a_server_that_refuses_the_client_is_used_last() -> None:
    """For example because it does not know the token yet."""
    cluster = Cluster(3)
    cluster.answers["a:1"] = AccessDenied("the token is unknown", code=AccessDenied.NOT_AUTHENTICATED)
    assert {cluster.session() for _ in range(50)} == {"b:1", "c:1"}
    assert {cluster.any() for _ in range(50)} == {"b:1", "c:1"}, "other calls avoid it, too"
    for answer in [None, Load(0, accepts_sessions=False)]:
        cluster.answers["b:1"] = cluster.answers["c:1"] = answer
        assert {cluster.session() for _ in range(50)} <= {"b:1", "c:1"}
    cluster.lose("b:1", "c:1")
    assert cluster.session() == "a:1", "its error says what is wrong"
    assert cluster.servers.elsewhere([cluster.server("b:1")]) is None


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (grpc.StatusCode.UNIMPLEMENTED, LogitportError),
        (grpc.StatusCode.UNAUTHENTICATED, AccessDenied),
        (grpc.StatusCode.INTERNAL, LogitportError),
        (grpc.StatusCode.UNAVAILABLE, ServerUnavailable),
        (grpc.StatusCode.DEADLINE_EXCEEDED, type(None)),
    ],
)
def test_the_answer_of_a_server_without_a_load(status: grpc.StatusCode, kind: type) -> None:
    class Refusing(processing_pb2_grpc.LogitProcessingServicer):
        def GetLoad(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
            context.abort(status, "refused")

    with ThreadPoolExecutor(1) as threads:
        running = grpc.server(threads)
        processing_pb2_grpc.add_LogitProcessingServicer_to_server(Refusing(), running)  # type: ignore[no-untyped-call]
        port = running.add_insecure_port("127.0.0.1:0")
        running.start()
        servers = Servers.of(f"127.0.0.1:{port}", Connection.prepare("", None), 1 << 20)
        answers: queue.SimpleQueue[Answer] = queue.SimpleQueue()
        servers.any().request_load(answers.put)
        answer = answers.get(timeout=30)
        assert isinstance(answer, kind)
        assert answer is None or isinstance(answer, LogitportError)
        assert servers.any().answers() == (kind not in (ServerUnavailable, type(None))), "it runs"
        running.stop(None).wait()


@pytest.mark.slow
@pytest.mark.parametrize("late", [Load(0, accepts_sessions=True), None])
def test_a_slow_answer_is_not_waited_for_once_a_server_accepts(late: Answer) -> None:
    cluster = Cluster(2)
    cluster.slow, cluster.answers["b:1"] = {"b:1"}, late
    for _ in range(10):
        assert cluster.session() == "a:1"
    assert {cluster.any() for _ in range(50)} == {"a:1", "b:1"}
    for answer in cluster.late:
        answer()
    works = {"b:1"} if late else set()
    assert {cluster.any() for _ in range(50)} == {"a:1"} | works, "the answer counts all the same"


@pytest.mark.parametrize("answer", [None, ServerUnavailable("down"), Load(0, accepts_sessions=False)])
def test_a_session_that_could_stay_goes_only_to_a_server_that_accepts_it(answer: Answer) -> None:
    cluster = Cluster(4)
    cluster.answers = dict.fromkeys(cluster.listed, answer)
    present, other = cluster.server("a:1"), cluster.server("b:1")
    cluster.answers["a:1"] = cluster.answers["b:1"] = Load(0, accepts_sessions=True)
    for _ in range(5):
        assert cluster.servers.elsewhere([present]) is other
        assert cluster.servers.elsewhere([present, other]) is None
    cluster.listed = ["a:1"]
    cluster.clock.now += 4
    assert cluster.servers.elsewhere([present]) is None


def test_many_silent_servers_are_not_all_waited_for() -> None:
    cluster = Cluster(26)
    cluster.answers = dict.fromkeys(cluster.listed, None)
    cluster.session()
    assert len(cluster.asked) == 16


def test_a_session_that_lost_its_server_goes_to_another_one() -> None:
    cluster = Cluster(3)
    streams: list[tuple[str, float, float]] = []

    def stream(server: ServerChannel, wait_seconds: float, open_seconds: float) -> Any:
        streams.append((server.target, wait_seconds, open_seconds))
        return ended_stream()

    choice = ServerChoice(cluster.servers, stream, Registrations(), lambda *_: None)
    with pytest.raises(ServerUnavailable, match="has no server"):
        choice.restore()
    for _ in range(2):
        choice.connect(9.0)
    (first, *_), (second, *_) = streams
    assert first != second
    assert {cluster.any() for _ in range(50)} == set(cluster.listed) - {first}, "other calls avoid it, too"
    assert {tuple(times) for _, *times in streams} == {(0.0, 5.0)}


def recorded_choice(cluster: Cluster) -> tuple[ServerChoice, list[Script]]:
    """The choice of a session, and the list to which its connections are added."""
    streams: list[Script] = []

    def stream(*_: Any) -> Any:
        streams.append(Script())
        return streams[-1]

    return ServerChoice(cluster.servers, stream, Registrations(), lambda *_: None), streams


def test_a_server_is_not_set_aside_because_a_session_moves() -> None:
    """It works, and is perhaps the least loaded one soon."""
    cluster = Cluster(3)
    choice, streams = recorded_choice(cluster)
    choice.connect(0.0)
    for moves in range(10):
        before = choice.server
        found = choice.elsewhere()
        assert found is not None
        found.connect(0.0)
        assert choice.server is before
        found.settle(True)
        assert choice.server is not before
        assert {cluster.any() for _ in range(50)} == set(cluster.listed), f"after {moves} moves"
    assert len(streams) == 11
    before = choice.server
    choice.connect(0.0)
    assert before is not None
    assert {cluster.any() for _ in range(50)} == set(cluster.listed) - {before.target}


def test_registrations_are_restored_on_the_server_to_which_a_session_moves() -> None:
    cluster = Cluster(2)
    calls: list[str] = []
    registrations = Registrations()
    registrations.remember(registry_pb2.RegisterRequest(payload="x"), registry_pb2.ProcessorInfo(digest="x"), "one")

    def send(server: ServerChannel, *_: object) -> Any:
        calls.append(server.target)
        return registry_pb2.ListResponse(processors=[registry_pb2.ProcessorInfo(digest="x")])

    choice = ServerChoice(cluster.servers, lambda *_: Script(), registrations, send)  # type: ignore[arg-type, return-value]
    assert choice.elsewhere() is None, "there is no server to leave"
    choice.connect(0.0)
    choice.restore()
    found = choice.elsewhere()
    assert found is not None
    found.restore()
    assert sorted(calls) == cluster.listed


def test_a_server_that_refused_the_requests_of_a_session_is_tried_last() -> None:
    cluster = Cluster(3)
    choice, _ = recorded_choice(cluster)
    choice.connect(0.0)
    found = choice.elsewhere()
    assert found is not None
    found.settle(False)
    for _ in range(10):
        cluster.asked.clear()
        choice.elsewhere()
        assert len(cluster.asked) == 1
    cluster.lose(cluster.asked[0])
    assert choice.elsewhere() is not None, "it may take them now"


def test_a_server_is_checked_only_if_there_is_another_one() -> None:
    cluster = Cluster(2)
    choice = ServerChoice(cluster.servers, lambda *_: Script(), Registrations(), lambda *_: None)  # type: ignore[arg-type, return-value]
    assert choice.answers(), "there is no connection"
    choice.connect(0.0)
    assert choice.answers()
    assert choice.server is not None
    cluster.lose(choice.server.target)
    assert not choice.answers()
    cluster.clock.now += 4
    cluster.listed = [choice.server.target]
    cluster.servers.refresh()
    assert choice.answers()


def test_a_server_that_was_only_full_is_not_set_aside() -> None:
    """It works. The session goes to another one."""
    cluster = Cluster(3)
    choice, _ = recorded_choice(cluster)
    choice.connect(0.0)
    full = choice.server
    choice.refused()
    choice.connect(0.0)
    assert choice.server is not full
    assert {cluster.any() for _ in range(50)} == set(cluster.listed)
    lost = choice.server
    choice.connect(0.0)
    assert lost is not None
    assert {cluster.any() for _ in range(50)} == set(cluster.listed) - {lost.target}, "it was not full"


def test_a_session_returns_to_its_server_if_no_other_one_can_be_reached() -> None:
    """The server that was lost may be back before the others are."""
    cluster = Cluster(2)
    connected: list[str] = []

    def stream(server: ServerChannel, *_: float) -> Any:
        connected.append(server.target)
        return ended_stream()

    choice = ServerChoice(cluster.servers, stream, Registrations(), lambda *_: None)
    choice.connect(9.0)
    (first,) = connected
    cluster.lose(*(set(cluster.listed) - {first}))
    with pytest.raises(ServerUnavailable, match="none of the servers"):
        choice.connect(9.0)
    assert first not in cluster.asked[-1:]
    choice.connect(9.0)
    assert connected == [first, first]
    cluster.answers = dict.fromkeys(cluster.listed, Load(0, accepts_sessions=True))
    choice.connect(9.0)
    assert connected[2] != first, "it was lost again"


def test_after_the_end() -> None:
    cluster = Cluster(2)
    used = cluster.server("a:1")
    assert used.channel in cluster.servers.close()
    cluster.listed = ["d:1"]
    cluster.clock.now += 4
    with pytest.raises(ServerUnavailable, match="is closed"):
        cluster.session()


def test_the_token_is_not_sent_unencrypted_to_any_address(tmp_path: Path) -> None:
    path = tmp_path / "servers.json"
    path.write_text('[{"targets": ["127.0.0.1:1", "10.0.0.1:2"]}]')
    for target in ("127.0.0.1:1,10.0.0.1:2", ["10.0.0.1:2"], path, lambda: "10.0.0.1:2", "dns:///example.com:2"):
        with pytest.raises(InvalidArgument, match=r"a token would be sent to \S+:2 unencrypted"):
            Client(target, token="secret")
    with pytest.raises(InvalidArgument, match=r"the document .* is read from example.com:80 unencrypted, .* use https"):
        Client("http://example.com/servers", token="secret", tls=Tls())
    Client(path, token="secret", tls=Tls()).close()
    Client("127.0.0.1:1,[::1]:2,unix:/run/a.sock", token="secret").close()


def test_a_later_address_to_which_the_token_must_not_be_sent(caplog: pytest.LogCaptureFixture) -> None:
    clock, listed = Clock(1000.0), ["127.0.0.1:1"]
    connection = Connection.prepare("secret", None)
    addresses = AddressList(source_of(lambda: listed), connection.check, clock)
    listed.append("10.0.0.1:2")
    clock.now += 4
    addresses.refresh()
    assert [address.target for address in addresses.addresses] == ["127.0.0.1:1"]
    assert "a token would be sent to 10.0.0.1:2 unencrypted" in caplog.text


def test_a_channel_is_closed_when_no_session_uses_it() -> None:
    listed = ["127.0.0.1:1", "127.0.0.1:2"]
    servers = Servers.of(lambda: listed, Connection.prepare("", None), 1 << 20)
    one = servers.any()
    channel = one.channel
    del servers, one
    gc.collect()
    with pytest.raises(ValueError, match="closed channel"):
        channel.unary_unary("/x/Y")(b"", timeout=60)
