"""Servers that stop without closing their connections, where others could take their sessions."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from logitport import Client, Request
from logitport.session.failover import stopped_servers
from logitport.session.failover.stopped_servers import StoppedServerWatch
from tests.client.scripted import Script
from tests.client.session.transports.scripted_server import scripted_server
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

QUIET_SECONDS = 0.05


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopped_servers, "_INTERVAL_SECONDS", QUIET_SECONDS / 10)
    monkeypatch.setattr(stopped_servers, "_QUIET_SECONDS", QUIET_SECONDS)


class Connection:
    """The part of a transport that the watch uses."""

    target = "there:1"

    def __init__(self) -> None:
        self.times_lost = 0

    def lose(self) -> None:
        self.times_lost += 1


class Channel:
    """The part of a channel that the watch uses: it waits for the reply to a frame."""

    def __init__(self) -> None:
        self.connection = Connection()
        self.unanswered: tuple[Connection, int] | None = (self.connection, 1)


class Watched:
    """A watch, and the checks that it makes.

    Attributes:
        answers: whether the server answers the next checks; the last one is for all further ones.
        checks: number of checks.
        during_check: called in each check, with its number.
    """

    def __init__(self) -> None:
        self.channel = Channel()
        self.answers = [True]
        self.during_check: Callable[[int], object] = lambda _: None
        self.checks = 0
        self.watch = StoppedServerWatch(self.channel, self._answers)  # type: ignore[arg-type]

    def after_checks(self, count: int) -> Connection:
        until = self.checks + count
        wait_until(lambda: self.checks >= until)
        return self.channel.connection

    def _answers(self) -> bool:
        self.during_check(self.checks + 1)
        self.checks += 1
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


@pytest.fixture
def watched() -> Iterator[Watched]:
    made = Watched()
    yield made
    made.watch.close()


def test_a_server_that_answers_no_check_is_lost(watched: Watched, caplog: pytest.LogCaptureFixture) -> None:
    watched.answers = [False]
    connection = watched.after_checks(2)
    wait_until(lambda: connection.times_lost)
    assert "there:1 has answered neither a frame nor 2 calls" in caplog.text
    assert watched.after_checks(3).times_lost == 1


def test_one_check_without_an_answer_is_not_enough(watched: Watched) -> None:
    watched.answers = [False, True] * 3
    assert watched.after_checks(8).times_lost == 0


def test_a_frame_that_is_answered_during_the_last_check(watched: Watched) -> None:
    """For example by a server that was stopped for 3 s."""
    watched.during_check = lambda check: setattr(watched.channel, "unanswered", None) if check == 2 else None
    watched.answers = [False, False, True]
    assert watched.after_checks(2).times_lost == 0
    watched.channel.unanswered = (watched.channel.connection, 2)
    assert watched.after_checks(1).times_lost == 0, "the watch has gone on"


@pytest.mark.parametrize("idle", [True, False])
def test_a_server_is_not_checked_while_frames_are_answered(watched: Watched, idle: bool) -> None:
    if idle:
        watched.channel.unanswered = None
    began = watched.checks
    until = time.monotonic() + 4 * QUIET_SECONDS
    frame = 1
    while time.monotonic() < until:
        frame += 1
        if not idle:
            watched.channel.unanswered = (watched.channel.connection, frame)
        time.sleep(0)
    assert watched.checks - began <= 1  # one may have begun before


def test_the_thread_ends_with_the_channel(watched: Watched) -> None:
    channel = weakref.ref(watched.channel)
    del watched.channel
    gc.collect()
    assert channel() is None
    wait_until(lambda: not any(thread.name == "logitport-stopped" for thread in threading.enumerate()))


def test_a_slow_frame_is_not_sent_to_another_server() -> None:
    """For example a processor that takes seconds to load."""
    frames: list[str] = []

    def slow(session: int, frame: Any) -> dict[str, Any]:
        frames.append(frame.WhichOneof("frame"))
        if frame.HasField("add"):
            time.sleep(10 * QUIET_SECONDS)
        return Script.correct(frame)

    with (
        scripted_server(slow) as one,
        scripted_server(slow) as other,
        Client([f"127.0.0.1:{port}" for port in (one, other)]) as client,
    ):
        session = client.session(vocab_size=4)
        handle = session.add(Request([1]))
        session.step({handle: []}).apply(np.zeros((1, 4), np.float32))
        assert session.reconnects == 0
    assert frames == ["open", "add", "step"]
