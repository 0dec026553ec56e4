"""`logitport serve --processes`: several servers that are started, listed, measured and ended as one."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from logitport import Client, EditProcessor, EditRequest, LogitportError, PayloadError, Request, RowEdits
from tests.conftest import COMMAND, environment
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.conftest import RunningServer

VOCAB = 8
SERVERS = 2


class Forces(EditProcessor):
    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        edits.force(request.params["token_id"])


def children(parent: int) -> list[int]:
    """Ids of the servers, in the order of their addresses."""
    files = Path(f"/proc/{parent}/task").glob("*/children")
    return sorted(int(child) for file in files for child in file.read_text().split())


def lives(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def ids_by_address(running: RunningServer) -> dict[str, int]:
    """Ids of the present processes, from the log."""
    found = re.findall(r"server (\S+) is process (\d+)", running.log.read_text())
    return {address: int(process) for address, process in found}


def metric(running: RunningServer, name: str, **labels: str) -> dict[str, float]:
    with urllib.request.urlopen(running.metrics_url) as response:
        families = text_string_to_metric_families(response.read().decode())
    samples = [sample for family in families for sample in family.samples if sample.name == name]
    return {one.labels["server"]: one.value for one in samples if labels.items() <= one.labels.items()}


def works(target: str) -> bool:
    """Whether the server makes a step with the processor that was registered on one of the servers."""
    request = Request([1], processors=[("team/forces", {"token_id": 5})])
    try:
        with Client(target, timeout=30) as client:
            return int(client.apply(np.zeros((1, VOCAB), np.float32), [request]).logits.argmax()) == 5
    except LogitportError:
        return False


@pytest.fixture
def running(start_server: Callable[..., RunningServer]) -> Iterator[RunningServer]:
    started = start_server(
        *("--processes", str(SERVERS)),
        *("--metrics-listen", "127.0.0.1:0", "--enable-custom-logit-processor"),
    )
    processes = children(started.process.pid)
    yield started
    for process in processes:  # the parent is killed after this
        if lives(process):
            os.kill(process, signal.SIGKILL)


@pytest.fixture
def registered(running: RunningServer) -> list[str]:
    """The addresses, when all servers have a processor that was registered on the first one."""
    targets = running.target.split(",")
    with Client(targets[0], timeout=300) as client:
        client.register(Forces, name="team/forces")
    for target in targets:
        wait_until(lambda: works(target))  # noqa: B023 - called at once
    return targets


def test_all_servers_are_one_service(running: RunningServer, registered: list[str]) -> None:
    assert len({*registered}) == SERVERS
    maps = Path(f"/proc/{running.process.pid}/maps").read_text()
    assert "libtorch" not in maps, "the parent computes nothing, and needs no memory for that"
    with ExitStack() as stack:
        for count, target in enumerate(registered, 1):
            session = stack.enter_context(stack.enter_context(Client(target)).session(vocab_size=VOCAB))
            handle = session.add(Request([1], processors=[("team/forces", {"token_id": 3})]))
            for _ in range(count):
                session.step({handle: []}).apply(np.zeros((1, VOCAB), np.float32))
        assert metric(running, "logitport_steps_total", transport="local") == {registered[0]: 1.0, registered[1]: 2.0}
        assert metric(running, "logitport_sessions") == dict.fromkeys(registered, 1.0)
        assert metric(running, "logitport_server_up") == dict.fromkeys(registered, 1.0)


def test_a_server_that_is_killed_is_started_again(running: RunningServer, registered: list[str]) -> None:
    killed = ids_by_address(running)[registered[0]]
    os.kill(killed, signal.SIGKILL)
    assert works(registered[1])
    wait_until(lambda: ids_by_address(running)[registered[0]] != killed)
    wait_until(lambda: works(registered[0]))
    assert f"server {registered[0]} ended with status -9" in running.log.read_text()
    assert metric(running, "logitport_server_restarts_total") == {registered[0]: 1.0, registered[1]: 0.0}
    assert metric(running, "logitport_server_up") == dict.fromkeys(registered, 1.0)
    assert running.stop() == 0


def test_a_server_that_stops_is_replaced(running: RunningServer, registered: list[str]) -> None:
    """It closes no connection and does not end, so only health checks find it."""
    stopped = ids_by_address(running)[registered[0]]
    os.kill(stopped, signal.SIGSTOP)
    wait_until(lambda: ids_by_address(running)[registered[0]] != stopped)
    assert not lives(stopped)
    wait_until(lambda: works(registered[0]))
    assert metric(running, "logitport_server_restarts_total") == {registered[0]: 1.0, registered[1]: 0.0}
    assert running.stop() == 0


def test_a_session_outlives_its_server(running: RunningServer, registered: list[str]) -> None:
    """SIGTERM to one server moves its sessions to the others: a rolling restart by hand."""
    with Client(registered) as client, client.session(vocab_size=VOCAB) as session:
        handle = session.add(Request([1], processors=[("team/forces", {"token_id": 3})]))
        (present,) = [address for address, open_ in metric(running, "logitport_sessions").items() if open_]
        ended = ids_by_address(running)[present]
        os.kill(ended, signal.SIGTERM)

        def moved() -> bool:
            logits = np.zeros((1, VOCAB), np.float32)
            session.step({handle: [2]}).apply(logits)
            assert int(logits.argmax()) == 3
            return bool(session.reconnects)

        wait_until(moved)
        wait_until(lambda: ids_by_address(running)[present] != ended)
        assert metric(running, "logitport_server_up")[present] == 1.0


def test_they_end_together(running: RunningServer, registered: list[str]) -> None:
    folder = Path(tmp_store(running))
    assert folder.is_dir()
    processes = children(running.process.pid)
    assert len(processes) == SERVERS
    assert running.stop() == 0
    assert not any(map(lives, processes))
    assert not folder.exists()
    assert "Traceback" not in running.log.read_text()


def tmp_store(running: RunningServer) -> str:
    """The temporary store of servers without --store, from the files that the first one has open."""
    descriptors = Path(f"/proc/{children(running.process.pid)[0]}/fd").iterdir()
    (database,) = {os.readlink(one) for one in descriptors if os.readlink(one).endswith("/registry.db")}
    return str(Path(database).parent)


def test_servers_end_with_a_parent_that_is_killed(running: RunningServer) -> None:
    processes = children(running.process.pid)
    running.process.kill()
    running.process.wait()
    wait_until(lambda: not any(map(lives, processes)))


def test_a_second_signal_ends_them_at_once(start_server: Callable[..., RunningServer]) -> None:
    running = start_server("--processes", "2", "--stop-seconds", "3600")
    processes = children(running.process.pid)
    with Client(running.target.split(",")) as client, client.session(vocab_size=VOCAB):
        running.process.send_signal(signal.SIGINT)
        wait_until(lambda: running.log.read_text().count("a second signal ends the server at once") == 2)
        assert running.process.poll() is None
        assert running.stop() == 1
    assert not any(map(lives, processes))


def test_consecutive_ports_and_the_advertised_ones(start_server: Callable[..., RunningServer]) -> None:
    port = consecutive_ports()
    running = start_server("--processes", "2", "--listen", f"127.0.0.1:{port}", "--advertise", "localhost:7000")
    assert running.target == "localhost:7000,localhost:7001"
    for own in (port, port + 1):
        with Client(f"127.0.0.1:{own}") as client:
            assert client.processors()
    assert running.stop() == 0


def consecutive_ports() -> int:
    """The first of two free ports, below those of the kernel's connections."""
    for port in range(21_000 + os.getpid() % 5_000, 32_000, 2):
        with ExitStack() as stack:
            try:
                for each in (port, port + 1):
                    stack.enter_context(socket.create_server(("127.0.0.1", each)))
            except OSError:
                continue
            return port
    raise AssertionError("no free ports")


def test_a_signal_during_the_start() -> None:
    options = ("--device", "cpu", "--processes", "2", "--listen", "127.0.0.1:0")
    with subprocess.Popen([COMMAND, "serve", *options], stderr=subprocess.DEVNULL, env=environment()) as process:
        wait_until(lambda: children(process.pid))
        (first,) = children(process.pid)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        assert not lives(first)


@pytest.mark.parametrize("taken", [0, 1])
def test_an_address_in_use(taken: int) -> None:
    port = consecutive_ports()
    with socket.create_server(("127.0.0.1", port + taken)):
        done = subprocess.run(
            [COMMAND, "serve", "--device", "cpu", "--processes", "2", "--listen", f"127.0.0.1:{port}"],
            check=False,
            capture_output=True,
            text=True,
            timeout=200,
            env=environment() | {"LOGITPORT_LOG_LEVEL": "error"},
        )
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert done.stderr.startswith(f"logitport: cannot listen on 127.0.0.1:{port + taken}")


def test_sockets(start_server: Callable[..., RunningServer], tmp_path: Path) -> None:
    path = tmp_path / "lp.sock"
    running = start_server("--processes", "2", "--listen", f"unix:{path}")
    assert running.target == f"unix:{path}.0,unix:{path}.1"
    for target in running.target.split(","):
        with Client(target) as client:
            assert client.processors()


def test_keys_are_reloaded_by_all(start_server: Callable[..., RunningServer], tmp_path: Path) -> None:
    """Also without SIGHUP, which is passed on for the files that are not watched."""
    keys = tmp_path / "keys"
    keys.mkdir()
    for key in (tmp_path / "team", keys / "other"):
        subprocess.run([COMMAND, "payload", "keygen", str(key)], check=True, capture_output=True, timeout=200)
    running = start_server("--processes", "2", "--enable-custom-logit-processor", "--trusted-keys", str(keys))

    def accepted(target: str) -> bool:
        with Client(target) as client:
            try:
                return bool(client.register(Forces, signing_key=tmp_path / "team"))
            except PayloadError:
                return False

    targets = running.target.split(",")
    assert not any(map(accepted, targets))
    (tmp_path / "team.pub").rename(keys / "team.pub")
    for target in targets:
        wait_until(lambda: accepted(target))  # noqa: B023 - called at once
