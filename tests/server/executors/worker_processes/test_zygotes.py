"""When a zygote that has ended is launched again."""

from __future__ import annotations

import os
import socket
import threading
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pytest

from logitport_sandbox import SandboxError, WorkerLimits
from logitport_server.executors.worker_processes import zygotes as zygotes_module
from logitport_server.executors.worker_processes.worker_process import WorkerGone
from logitport_server.executors.worker_processes.zygotes import ZygoteKind, Zygotes
from logitport_server.worker import messages
from logitport_server.worker.start import StartedZygote
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

KIND = ZygoteKind("3.11", False)


class FakeTimer:
    """A timer that elapses when the test says so."""

    made: list[FakeTimer]

    def __init__(self, seconds: float, function: Any) -> None:
        self.seconds, self.elapse = seconds, function
        self.daemon = False
        self.is_cancelled = False
        self.made.append(self)

    def start(self) -> None:
        assert self.daemon

    def cancel(self) -> None:
        self.is_cancelled = True


class Launches:
    """Zygotes of processes that the test plays."""

    def __init__(self) -> None:
        self.ends: list[socket.socket] = []
        self.fails = False
        self.zygotes = Zygotes([KIND], self.start, WorkerLimits(), {})

    def start(self, kind: ZygoteKind) -> StartedZygote:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.ends.append(theirs)
        if self.fails:
            ours.close()
            raise SandboxError("no sandbox today")
        process = Mock()
        process.poll.return_value = None
        process.wait.return_value = 0
        return StartedZygote(ours, process, frozenset())

    def end(self, *, ready: bool = True) -> None:
        """Let the last process end, and wait until that is known."""
        zygote = self.zygotes.current()[KIND]
        if ready:
            self.ends[-1].send(messages.encode(messages.Ready()))
        self.ends[-1].close()
        wait_until(lambda: not zygote.alive and zygote._ready.done())


@pytest.fixture
def timers(monkeypatch: pytest.MonkeyPatch) -> list[FakeTimer]:
    FakeTimer.made = []
    monkeypatch.setattr(zygotes_module, "Timer", FakeTimer)
    return FakeTimer.made


@pytest.fixture
def launches(timers: list[FakeTimer]) -> Iterator[Launches]:
    launches = Launches()
    yield launches
    launches.zygotes.close()
    for end in launches.ends:
        end.close()


def test_a_zygote_that_ends_again_and_again_is_launched_with_delays(
    launches: Launches, timers: list[FakeTimer]
) -> None:
    launches.end()
    wait_until(lambda: len(launches.ends) == 2)  # without a call
    assert launches.zygotes.get(KIND, 60.0).alive
    assert timers == []
    for delay in (1.0, 2.0, 4.0):
        launched = len(launches.ends)
        launches.end()
        wait_until(lambda delay=delay: timers and timers[-1].seconds == delay)
        with pytest.raises(WorkerGone, match="is being launched"):
            launches.zygotes.get(KIND, 0.0)
        assert len(launches.ends) == launched
        timers[-1].elapse()
        assert launches.zygotes.get(KIND, 60.0).alive
        assert len(launches.ends) == launched + 1


@pytest.mark.parametrize("cause", ["ends before it is ready", "cannot be started"])
def test_calls_do_not_launch_a_zygote_again_and_again(launches: Launches, timers: list[FakeTimer], cause: str) -> None:
    launches.end(ready=False)
    if cause == "cannot be started":
        launches.fails = True
        with pytest.raises(WorkerGone, match="no sandbox today"):
            launches.zygotes.get(KIND, 60.0)
    else:
        assert launches.zygotes.get(KIND, 60.0).alive
        launches.end(ready=False)
    for _ in range(5):
        with pytest.raises(WorkerGone, match="is being launched"):
            launches.zygotes.get(KIND, 0.0)
    assert len(launches.ends) == 2
    assert [timer.seconds for timer in timers] == [1.0]


def test_a_launch_that_is_delayed_ends_with_the_server(launches: Launches, timers: list[FakeTimer]) -> None:
    for _ in range(2):
        launched = len(launches.ends)
        launches.end()
        wait_until(lambda launched=launched: timers or len(launches.ends) > launched)
        if not timers:
            launches.zygotes.get(KIND, 60.0)
    errors: list[Exception] = []

    def wait() -> None:
        try:
            launches.zygotes.get(KIND, 3600.0)
        except WorkerGone as error:
            errors.append(error)

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    launches.zygotes.close()
    waiting.join(60.0)
    assert "the server ends" in str(errors[0])
    assert timers[0].is_cancelled
    timers[0].elapse()  # it was about to
    assert len(launches.ends) == 2


def test_a_shortage_of_descriptors_delays_no_launch(launches: Launches, timers: list[FakeTimer]) -> None:
    def lacks(_: ZygoteKind) -> StartedZygote:
        raise OSError(24, os.strerror(24))

    launches.end(ready=False)
    launches.zygotes._start = lacks
    for _ in range(3):
        with pytest.raises(OSError, match="Too many open files"):
            launches.zygotes.get(KIND, 60.0)
    launches.zygotes._start = launches.start
    assert launches.zygotes.get(KIND, 60.0).alive
    assert timers == []
