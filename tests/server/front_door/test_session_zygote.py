"""The front door's end of a zygote that the test plays, or that runs on a thread of the test."""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
import sys
import threading
import time
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from logitport.errors import LimitExceeded, ServerUnavailable
from logitport_server.config import ServerConfig
from logitport_server.front_door import session_zygote
from logitport_server.front_door.session_zygote import LaunchedZygote, SessionZygote
from logitport_server.front_door.setups import setup_of
from logitport_server.lifecycle.start_errors import StartupError
from logitport_server.principal_process import principal_zygote
from logitport_server.principal_process import zygote_messages as messages
from logitport_server.principal_process.channel import Channel
from logitport_server.principal_process.worker_messages import WorkerSettings
from tests.event_loops import on_loop

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

_SETTINGS = WorkerSettings(isolated=False, call_seconds=1.0, load_seconds=1.0, pythons=[], program_milliseconds=1.0)


@pytest.mark.parametrize(
    ("number", "limit"),
    [
        (errno.EAGAIN, r"raise the limit of processes \(ulimit -u, TasksMax= of systemd, pids.max of a container\)"),
        (errno.ENOMEM, r"raise the limit of memory \(MemoryMax= of systemd, memory.max of a container\)"),
        (errno.EMFILE, r"raise the limit of open files \(ulimit -n, LimitNOFILE= of systemd\)"),
    ],
)
def test_a_refused_fork_names_the_limit(monkeypatch: pytest.MonkeyPatch, number: int, limit: str) -> None:
    def refuse() -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(principal_zygote, "os", SimpleNamespace(**{**vars(os), "fork": refuse}))
    with pytest.raises(LimitExceeded, match=limit) as refused:
        asyncio.run(fork())
    assert os.strerror(number) in str(refused.value)


def test_a_fork_without_a_descriptor_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    forks = []

    def remember() -> int:
        process_id = os.fork()
        if process_id:
            forks.append(process_id)
        else:
            time.sleep(10.0)
            os._exit(0)
        return process_id

    def refuse(_: int) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(principal_zygote, "os", SimpleNamespace(**{**vars(os), "fork": remember, "pidfd_open": refuse}))
    with pytest.raises(LimitExceeded, match="ulimit -n"):
        asyncio.run(fork())
    assert len(forks) == 2
    for process_id in forks:
        with pytest.raises(ChildProcessError):  # it was reaped
            os.waitpid(process_id, os.WNOHANG)


async def fork() -> None:
    """Request two processes; the zygote serves on after it has refused the first."""
    ours, theirs = Channel.pair()
    channel = Channel(theirs, messages.TO_ZYGOTE)
    nothing: Any = None
    forks = threading.Thread(target=principal_zygote._PrincipalZygote(channel, nothing, nothing).run, daemon=True)
    sleeper = subprocess.Popen(["sleep", "600"])  # noqa: ASYNC220 - `close` kills it
    requested = SessionZygote(nothing, LaunchedZygote(sleeper, ours), _SETTINGS, {})
    channel.send(messages.Prepared(device="cpu", installed=[]))
    forks.start()
    try:
        await requested.start()
        with pytest.raises(LimitExceeded):
            await requested.fork("anna")
        await requested.fork("bert")
    finally:
        requested.close()
        await asyncio.to_thread(forks.join)
        theirs.close()


class Played:
    """Zygotes that the test plays. The first is launched by it, the others by the front door.

    Attributes:
        zygotes: their ends of the channels, the newest last.
        processes: what stands for their processes.
    """

    def __init__(self) -> None:
        self.zygotes: list[Channel] = []
        self.processes: list[subprocess.Popen[bytes]] = []

    def launch(self, setup: Any = None) -> LaunchedZygote:
        ours, theirs = Channel.pair()
        self.zygotes.append(Channel(theirs, messages.TO_ZYGOTE))
        self.processes.append(subprocess.Popen(["sleep", "600"]))
        return LaunchedZygote(self.processes[-1], ours)

    async def launched(self, number: int) -> Channel:
        """Wait for the zygote of this number."""
        while len(self.zygotes) <= number:  # noqa: ASYNC110 - `launch` may be called by any code
            await asyncio.sleep(0.01)
        return self.zygotes[number]

    async def answer_fork(self) -> None:
        """Receive a request, and answer as if the newest process were the fork."""
        received = await asyncio.to_thread(self.zygotes[-1].receive)
        assert received is not None
        request, descriptors = received
        pid = self.processes[-1].pid
        pidfd = os.pidfd_open(pid)
        self.zygotes[-1].send(messages.ProcessForked(number=request.number, process_id=pid), [pidfd])
        for descriptor in (pidfd, *descriptors):
            os.close(descriptor)


@asynccontextmanager
async def played(
    monkeypatch: pytest.MonkeyPatch, *, starts: bool = True
) -> AsyncIterator[tuple[SessionZygote, Played]]:
    zygotes = Played()
    monkeypatch.setattr(session_zygote, "launch", zygotes.launch)
    monkeypatch.setattr(session_zygote, "_FORK_SECONDS", 0.3)
    nothing: Any = None
    requested = SessionZygote(nothing, zygotes.launch(), _SETTINGS, {})
    try:
        if starts:
            zygotes.zygotes[0].send(messages.Prepared(device="cpu", installed=[]))
            await requested.start()
        yield requested, zygotes
    finally:
        requested.close()
        for channel in zygotes.zygotes:
            channel.close()
        for process in zygotes.processes:
            process.kill()
            process.wait()


@on_loop
async def test_a_zygote_that_does_not_answer_is_replaced(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with played(monkeypatch) as (requested, zygotes):
        refused = await asyncio.gather(*(requested.fork("anna") for _ in range(3)), return_exceptions=True)
        assert {type(error) for error in refused} == {ServerUnavailable}
        assert zygotes.processes[0].poll() is not None
        (await zygotes.launched(1)).send(messages.Prepared(device="cpu", installed=[]))
        forking = asyncio.ensure_future(requested.fork("anna"))
        await zygotes.answer_fork()
        assert (await forking).process_id == zygotes.processes[1].pid
        assert len(zygotes.zygotes) == 2
    (record,) = caplog.records
    assert "has not answered" in record.message
    assert "is started again" in record.message


@on_loop
async def test_a_zygote_that_is_never_ready_again_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    async with played(monkeypatch) as (_, zygotes):
        monkeypatch.setattr(session_zygote, "_START_SECONDS", 0.1)
        zygotes.zygotes[0].close()
        await asyncio.wait_for(zygotes.launched(2), 30.0)
        assert zygotes.processes[1].poll() is not None


@on_loop
async def test_callers_do_not_learn_why_a_zygote_refuses_its_setup(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with played(monkeypatch) as (requested, zygotes):
        zygotes.zygotes[0].close()
        second = await zygotes.launched(1)
        forking = asyncio.ensure_future(requested.fork("anna"))
        await asyncio.sleep(0.05)
        second.send(messages.Refused(reason="/operators/tokenizer.json: no such file"))
        with pytest.raises(ServerUnavailable) as refused:
            await forking
        assert "operators" not in str(refused.value)
        with pytest.raises(ServerUnavailable, match="try again"):  # the next launch is delayed
            await requested.fork("anna")
        (await asyncio.wait_for(zygotes.launched(2), 30.0)).send(messages.Prepared(device="cpu", installed=[]))
        forking = asyncio.ensure_future(requested.fork("anna"))
        await zygotes.answer_fork()
        await forking
    assert "/operators/tokenizer.json: no such file; it is started again in 1 s" in caplog.text


@on_loop
async def test_a_refused_setup_stops_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    async with played(monkeypatch, starts=False) as (requested, zygotes):
        zygotes.zygotes[0].send(messages.Refused(reason="tokenizer.json: no such file"))
        with pytest.raises(StartupError, match="no such file"):
            await requested.start()
        assert len(zygotes.zygotes) == 1


@pytest.mark.slow
def test_modules_in_the_working_directory_are_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("argparse", "torch", "logitport_server"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('foreign')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    launched = session_zygote.launch(setup_of(ServerConfig(device="cpu")))
    with launched.process:
        received = Channel(launched.control, messages.FROM_ZYGOTE).receive()
        launched.control.close()
    assert launched.process.returncode == 0
    assert received is not None
    assert isinstance(received[0], messages.Prepared)
