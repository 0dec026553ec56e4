"""A fork that the kernel refuses, with a zygote in the test's process."""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from logitport.errors import LimitExceeded
from logitport_server.front_door.session_zygote import LaunchedZygote, SessionZygote
from logitport_server.principal_process import zygote
from logitport_server.principal_process import zygote_messages as messages
from logitport_server.principal_process.channel import Channel
from logitport_server.principal_process.worker_messages import WorkerSettings

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

    monkeypatch.setattr(zygote, "os", SimpleNamespace(**{**vars(os), "fork": refuse}))
    with pytest.raises(LimitExceeded, match=limit) as refused:
        asyncio.run(fork())
    assert os.strerror(number) in str(refused.value)


async def fork() -> None:
    """Request two processes; the zygote serves on after it has refused the first."""
    ours, theirs = Channel.pair()
    channel = Channel(theirs, messages.TO_ZYGOTE)
    nothing: Any = None
    forks = threading.Thread(target=zygote._Zygote(channel, nothing, nothing).run, daemon=True)
    sleeper = subprocess.Popen(["sleep", "600"])  # noqa: ASYNC220 - `close` kills it
    requested = SessionZygote(nothing, LaunchedZygote(sleeper, ours), _SETTINGS, {})
    channel.send(messages.Prepared(device="cpu"))
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
