"""Fails a test file that leaves descriptors, threads or child processes behind, and names them.

They would break a later file that counts its own.

A plugin of pytest. What a fixture of the whole run opens while it is set up belongs to the run, not to the file that
happens to need it first.
"""

from __future__ import annotations

import gc
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from multiprocessing import resource_tracker
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.descriptors import opened
from tests.tiers import ROOT

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

# gRPC closes descriptors on threads of its own, after the call that ends a channel.
_SECONDS = 60.0
# Of the process, by design: torch's thread, those of `logitport play` that run code which cannot be stopped, and what
# gRPC waits with.
_PERMANENT = (
    *("thread logitport-play", "thread tqdm_monitor"),
    *("anon_inode:[eventfd]", "anon_inode:[eventpoll]"),
)
_EXCLUDED = "engines/"  # engines keep threads of their own, and hooks live as long as they do

_of_the_run: Counter[str] = Counter()


def _open() -> Counter[str]:
    """Count what the process has: descriptors by path or inode of a socket, threads by name, child processes by id."""
    found = Counter(f"thread {one.name}" for one in threading.enumerate())
    tracker = resource_tracker._resource_tracker  # multiprocessing keeps one process and its pipe for ever
    descriptor, process = getattr(tracker, "_fd", None), getattr(tracker, "_pid", None)
    found.update(target for number, target in opened() if number != descriptor)
    found.update(f"process {child}" for child in _children() if child != process)
    return Counter({what: count for what, count in found.items() if what not in _PERMANENT})


def _children() -> Iterator[int]:
    for children in Path("/proc/self/task").glob("*/children"):
        with suppress(OSError):  # the thread has ended
            yield from map(int, children.read_text().split())


def _described(what: str) -> str:
    """Return what is open, with the command of a process; it has none once it has ended without being waited for."""
    with suppress(OSError):
        if what.startswith("process "):
            command = Path(f"/proc/{what.split()[1]}/cmdline").read_text()
            return f"{what} ({command.replace(chr(0), ' ').strip()[:200] or 'ended'})"
    return what


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any]) -> Generator[None, object, object]:
    """Note what a fixture of the whole run opens."""
    if fixturedef.scope != "session":
        return (yield)
    before = _open()
    try:
        return (yield)
    finally:
        _of_the_run.update(_open() - before)


@pytest.fixture(autouse=True)
def objects_of_a_test_are_dropped(request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Drop the values of a test's fixtures, and its log records with their tracebacks, after the end of the fixtures.

    Pytest would keep those of the last test of a file until after the check of the file.
    """
    yield
    getattr(request.node, "funcargs", {}).clear()
    for when in ("setup", "call"):
        caplog.get_records(when).clear()


@pytest.fixture(scope="module", autouse=True)
def nothing_is_left_open(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail the last test of a file if the file has left something open, unless a test has failed before."""
    of_the_run, before, failed = _of_the_run.copy(), _open(), request.session.testsfailed
    yield
    if request.session.testsfailed > failed:
        return  # its traceback may hold them
    if request.path.is_relative_to(ROOT) and request.path.relative_to(ROOT).as_posix().startswith(_EXCLUDED):
        return

    def left() -> Counter[str]:
        return _open() - before - (_of_the_run - of_the_run)

    if checking := sys.modules.get("logitport_testing.laws.checking"):
        checking.close_workers()  # `check` keeps them for its next call
    deadline = time.monotonic() + _SECONDS
    while left() and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.02)
    assert not left(), f"the file has left these open: {sorted(map(_described, left().elements()))}"
