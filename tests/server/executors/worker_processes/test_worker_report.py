"""States of workers, and ids and memory of their processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from types import SimpleNamespace
from typing import Any, cast

from logitport_server.executors.calls.worker import Deadlines, Worker
from logitport_server.executors.worker_processes.worker_report import resident_bytes
from logitport_server.lifecycle.pidfd import process_id_of, send_signal
from logitport_server.registry.quarantine import Quarantine
from logitport_session.dialects import make_dialect
from tests.toy_processors import AddOneInPlace
from tests.waiting import wait_until


def test_a_process_is_found_by_its_descriptor() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        pidfd = os.pidfd_open(process.pid)
        try:
            assert process_id_of(pidfd) == process.pid
            wait_until(lambda: resident_bytes(process.pid) > 1 << 20)  # when Python has started
            process.communicate(b"\n")
            assert process_id_of(pidfd) == 0
        finally:
            os.close(pidfd)
    assert resident_bytes(process.pid) == 0
    assert process_id_of(pidfd) == 0


def test_a_signal_to_a_process_that_has_ended_is_no_error() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        pidfd = os.pidfd_open(process.pid)
        send_signal(pidfd, 0)
        send_signal(pidfd)
        assert process.wait() == -signal.SIGKILL
        send_signal(pidfd)
        os.close(pidfd)


class Process:
    process_id = 42


def report_of(worker: Worker) -> tuple[int, str, list[str]]:
    found = worker.report()
    return found.process_id, found.state, list(found.processors)


def test_the_states_of_a_worker() -> None:
    """A worker begins without a process, and is busy while a call has no reply."""
    worker = Worker(None, cast("Any", None), Deadlines(call=1.0, load=1.0), Quarantine(1, 1.0))
    assert report_of(worker) == (0, "starting", [])
    worker._process = cast("Any", Process())
    assert report_of(worker) == (42, "idle", [])
    held = [make_dialect(AddOneInPlace(), name, shipped=True) for name in ("b", "a", "a")]
    worker.dialects.update(held)
    assert report_of(worker) == (42, "ready", ["a", "b"])
    worker._posted.append(cast("Any", SimpleNamespace(source=SimpleNamespace(display_name="b"))))
    assert report_of(worker) == (42, "busy", ["b"])
    worker._posted.clear()
    held.clear()
    assert report_of(worker) == (42, "idle", [])
