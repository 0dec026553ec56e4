"""deploy/systemd/logitport.service under a real systemd: start, reload, stop, failures."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from logitport import Request
from tests.machine.guest.service import FLAG, NAME, DenyOne, systemctl, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from logitport import Client
    from tests.machine.guest.service import Service

VOCAB = 1000


def denied(client: Client, processor: Any = DenyOne, params: dict[str, Any] | None = None) -> list[int]:
    """The ids that a processor denies in a session of its own."""
    with client.session(vocab_size=VOCAB) as session:
        handle = session.add(Request([1], processors=[(processor, params or {})]))
        logits = np.zeros((1, VOCAB), np.float32)
        session.step({handle: []}).apply(logits)
    return np.flatnonzero(np.isneginf(logits)).tolist()


def test_it_starts_and_runs_shipped_code(service: Service, record_property: Callable[[str, object], None]) -> None:
    began = time.monotonic()
    service.start(variables=FLAG)
    record_property("start_seconds", round(time.monotonic() - began, 2))
    with service.client() as client:
        assert denied(client, "disallowed_tokens", {"token_ids": [7]}) == [7]
        assert denied(client) == [5]
    log = service.log()
    assert "by a cgroup for each process" in log
    assert "each worker has a cgroup of its own" in log
    assert "shipped processors are accepted" in log


def test_its_user_has_no_name_and_no_rights(service: Service) -> None:
    service.start(variables=FLAG)
    status = f"/proc/{service.process_id}/status"
    with open(status) as file:
        values = dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)
    assert int(values["Uid"].split()[0]) >= 61184  # the first of DynamicUser=
    assert int(values["CapEff"], 16) == 0
    assert int(values["CapBnd"], 16) == 0
    assert values["NoNewPrivs"] == "1"
    assert values["Seccomp"] == "2"


def test_the_exposure_of_the_running_unit(service: Service, record_property: Callable[[str, object], None]) -> None:
    service.start()
    command = ["systemd-analyze", "security", "--no-pager", NAME]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    exposure = re.search(r"exposure level for logitport\.service: ([\d.]+)", shown)
    assert exposure, shown
    record_property("exposure", float(exposure[1]))
    assert float(exposure[1]) <= 3.2


def test_sigterm_ends_it_without_an_error(service: Service, record_property: Callable[[str, object], None]) -> None:
    service.start(variables=FLAG)
    cgroup = service.cgroup
    with service.client() as client:
        denied(client)
        began = time.monotonic()
        systemctl("stop", NAME)
        record_property("stop_seconds", round(time.monotonic() - began, 2))
    assert (service.show("Result"), service.show("ExecMainStatus")) == ("success", "0")
    assert not cgroup.exists()


def test_it_is_started_again_after_kill_9(service: Service) -> None:
    """Its processes end with it, registrations are kept, and an open session goes on in the new process."""
    service.start(variables=FLAG)
    with service.client() as client:
        client.register(DenyOne, name="engine/deny-one")
        with client.session(vocab_size=VOCAB, reconnect_seconds=60.0) as session:
            handle = session.add(Request([1], processors=[("engine/deny-one", {})]))
            assert session.step({handle: []}).edits()
            processes = {int(pid) for path in service.cgroup.rglob("cgroup.procs") for pid in path.read_text().split()}
            first = service.process_id
            os.kill(first, signal.SIGKILL)
            wait_for(lambda: service.process_id not in (0, first), 30.0)
            service.wait_until_ready()
            logits = np.zeros((1, VOCAB), np.float32)
            session.step({handle: [2]}).apply(logits)
            assert np.flatnonzero(np.isneginf(logits)).tolist() == [5]
    assert service.show("NRestarts") == "1"
    assert not any(os.path.exists(f"/proc/{pid}") for pid in processes)


def test_a_wrong_option_is_not_tried_again(service: Service) -> None:
    service.configure(variables={"LOGITPORT_MAX_WORKERS": "many"})
    with pytest.raises(subprocess.CalledProcessError):
        service.start(variables={"LOGITPORT_MAX_WORKERS": "many"})
    wait_for(lambda: service.show("ActiveState") == "failed", 30.0)
    assert (service.show("ExecMainStatus"), service.show("NRestarts")) == ("2", "0")


def test_a_server_that_hangs_is_started_again(service: Service, record_property: Callable[[str, object], None]) -> None:
    service.start()
    first, began = service.process_id, time.monotonic()
    os.kill(first, signal.SIGSTOP)
    wait_for(lambda: service.process_id not in (0, first), 90.0)
    service.wait_until_ready()
    record_property("hang_seconds", round(time.monotonic() - began, 1))
    with service.client() as client:
        assert denied(client, "disallowed_tokens", {"token_ids": [7]}) == [7]


def test_a_start_returns_when_it_is_ready(service: Service) -> None:
    """So that a unit that is ordered after it can call it at once."""
    service.configure()
    systemctl("start", NAME)
    assert service.is_ready()


def test_a_reload_reads_files_again(service: Service) -> None:
    service.start()
    first = service.process_id
    systemctl("reload", NAME)
    with service.client() as client:
        assert denied(client, "disallowed_tokens", {"token_ids": [7]}) == [7]
    assert service.process_id == first
