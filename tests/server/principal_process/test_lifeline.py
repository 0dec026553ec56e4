"""A process ends with the front door, whatever it does."""

from __future__ import annotations

import os
import signal
import time

import pytest

from logitport_server.principal_process import lifeline


def child_with(reading: int, writing: int) -> int:
    """Fork a child that computes for ever, after it has closed the writing end. Returns its process id."""
    ready, told = os.pipe()
    process_id = os.fork()
    if process_id == 0:
        os.close(writing)
        lifeline.end_with(reading)
        os.write(told, b"1")
        while True:
            pass
    os.close(told)
    with os.fdopen(ready, "rb") as pipe:
        pipe.read(1)
    return process_id


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_process_that_computes_is_killed() -> None:
    reading, writing = lifeline.pipe()
    process_id = child_with(reading, writing)
    os.close(reading)
    assert os.waitpid(process_id, os.WNOHANG) == (0, 0)
    os.close(writing)
    _, status = os.waitpid(process_id, 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_pipe_that_was_closed_before() -> None:
    reading, writing = lifeline.pipe()
    os.close(writing)
    process_id = os.fork()
    if process_id == 0:
        lifeline.end_with(reading)
        time.sleep(60)
        os._exit(0)
    os.close(reading)
    _, status = os.waitpid(process_id, 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL
