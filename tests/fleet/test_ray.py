"""A fleet on a real Ray cluster: what is killed is replaced at the same address, and engines go on."""

from __future__ import annotations

import importlib.util
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from logitport import Client
from tests.conftest import COMMAND, environment, free_address
from tests.end_to_end import engines
from tests.end_to_end.engines import VOCAB, Engine
from tests.fleet.conftest import go_on
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        importlib.util.find_spec("ray") is None, reason="Ray is not installed; `make test-fleet` installs it"
    ),
]

_ENGINES = 4
_MORE_STEPS = 10


@dataclass
class Cluster:
    """A Ray cluster of one node, on loopback.

    Attributes:
        folder: of its sessions.
        variables: the environment of its processes, and of commands that use it.
    """

    folder: Path
    variables: dict[str, str]

    def ray(self, command: str, *options: str) -> subprocess.Popen[str]:
        """Start `logitport ray`."""
        return subprocess.Popen(
            [COMMAND, "ray", command, *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=self.variables,
        )

    def run(self, command: str, *options: str) -> tuple[int, str]:
        """Run `logitport ray`. Returns its exit status and its output."""
        with self.ray(command, *options) as process:
            output, _ = process.communicate(timeout=400)
            return process.returncode, output


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    port = free_address().rpartition(":")[2]
    with tempfile.TemporaryDirectory(prefix="lp-ray-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        variables = {
            **{name: value for name, value in environment().items() if not name.startswith("RAY_")},
            "RAY_ADDRESS": f"127.0.0.1:{port}",
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # keeps Ray on loopback, also on Linux
            "RAY_USAGE_STATS_ENABLED": "0",
        }
        options = {
            "--port": port,
            "--num-cpus": "1",
            "--object-store-memory": "80000000",
            "--include-dashboard": "false",
            "--temp-dir": folder,
            **{
                f"--{name}-port": free_address().rpartition(":")[2]
                for name in ("ray-client-server", "dashboard-agent-listen")
            },
        }
        command = [str(Path(sys.executable).with_name("ray")), "start", "--head", "--block"]
        log = Path(folder, "start.log")
        with (
            log.open("w") as output,
            subprocess.Popen(
                [*command, *(part for option in options.items() for part in option)],
                stdout=output,
                stderr=subprocess.STDOUT,
                env=variables,
            ) as head,
        ):
            try:
                wait_until(lambda: "Ray runtime started" in log.read_text() or head.poll() is not None, log.read_text)
                assert head.poll() is None, log.read_text()
                yield Cluster(Path(folder), variables)
            finally:
                head.terminate()  # it ends all processes of the cluster
                try:
                    head.wait(60)
                finally:
                    head.kill()


@dataclass
class Fleet:
    """A fleet that runs.

    Attributes:
        cluster: on which it runs.
        options: of `logitport ray up`, without its size.
        url: of its list.
        port: of its first server.
    """

    cluster: Cluster
    options: list[str]
    url: str
    port: int

    def size(self, servers: int, most: int) -> list[str]:
        """The options of a fleet of this size."""
        return ["--servers", str(servers), "--max", str(most), *self.options]

    def addresses(self, count: int) -> list[str]:
        """The addresses of the first servers."""
        return [f"127.0.0.1:{self.port + index}" for index in range(count)]

    def listed(self) -> list[str]:
        """The addresses in the list; empty if it cannot be read."""
        try:
            with urllib.request.urlopen(self.url, timeout=5) as reply:
                return [target for group in json.load(reply) for target in group["targets"]]
        except urllib.error.HTTPError as error:
            error.close()
            return []
        except OSError:
            return []

    def wait_for(self, count: int) -> None:
        """Wait until exactly the first servers are listed."""
        wait_until(
            lambda: self.listed() == self.addresses(count), lambda: f"{self.listed()}; {self.cluster.run('status')[1]}"
        )

    def processes(self, index: int) -> tuple[int, int]:
        """The ids of a server and of its actor; of a server that runs."""
        address = self.addresses(index + 1)[index]
        for arguments in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                words = arguments.read_text().split("\0")
            except OSError:
                continue
            if any("logitport_fleet.actor_child" in word for word in words) and address in words:
                return int(arguments.parent.name), int(words[words.index(address) - 1])
        return 0, 0

    def controller(self) -> int:
        """The id of the controller's process; 0 if it does not run."""
        for status in Path("/proc").glob("[0-9]*/status"):
            try:
                if not Path(status.parent, "cmdline").read_text().startswith("ray::ControllerActor"):
                    continue
                parent = next(line.split()[1] for line in status.read_text().splitlines() if line.startswith("PPid"))
                if str(self.cluster.folder) in Path("/proc", parent, "cmdline").read_text():
                    return int(status.parent.name)
            except OSError:
                continue
        return 0


@pytest.fixture(scope="session")
def fleet(cluster: Cluster) -> Iterator[Fleet]:
    port = int(free_address().rpartition(":")[2])
    options = ["--list-port", str(port), "--port-base", str(port + 1), "--metrics-port-base", str(port + 101)]
    options += ["--sessions-per-server", "4", "--scale-down-seconds", "1"]
    options += ["--", "--no-entry-points", "--device", "cpu", "--max-session-age", "5"]
    fleet = Fleet(cluster, options, f"http://127.0.0.1:{port}/targets", port + 1)
    status, output = cluster.run("up", *fleet.size(2, 3))
    assert status == 0, output
    assert output.startswith(f"list of servers: {fleet.url}\n")
    assert fleet.listed() == fleet.addresses(2)
    yield fleet
    cluster.run("down", "--now")


def longest_step(running: list[Engine]) -> float:
    """Seconds of the longest step of all engines."""
    return max(engine.longest_step for engine in running)


@contextmanager
def generating(fleet: Fleet) -> Iterator[list[Engine]]:
    """Run engines meanwhile, and some steps longer. They have the list alone, and must get the right tokens."""
    with Client(fleet.url, timeout=200) as client:
        made = [Engine(client, seed) for seed in range(_ENGINES)]
        with engines.generating(made, 0.03):
            go_on(made, _MORE_STEPS)
            yield made
            go_on(made, _MORE_STEPS)
        assert sum(engine.wrong for engine in made) == 0


def test_the_actor_of_a_server_is_killed(fleet: Fleet, figure: Callable[[str, float], None]) -> None:
    fleet.wait_for(2)
    server, actor = fleet.processes(0)
    with generating(fleet) as running:
        os.kill(actor, signal.SIGKILL)
        wait_until(lambda: not Path(f"/proc/{server}").exists())
        wait_until(lambda: fleet.listed() == fleet.addresses(2)[1:])
        fleet.wait_for(2)
    figure("actor of one of two servers killed: longest step of 4 engines (s)", longest_step(running))
    after = fleet.processes(0)
    assert after[0] not in (0, server)
    assert after[1] not in (0, actor)


def test_a_server_is_killed(fleet: Fleet, figure: Callable[[str, float], None]) -> None:
    fleet.wait_for(2)
    server, actor = fleet.processes(1)
    with generating(fleet) as running:
        os.kill(server, signal.SIGKILL)
        wait_until(lambda: fleet.listed() == fleet.addresses(1))
        fleet.wait_for(2)
    figure("one of two servers on Ray killed: longest step of 4 engines (s)", longest_step(running))
    after = fleet.processes(1)
    assert after[0] not in (0, server)
    assert after[1] == actor


def test_the_controller_is_killed(fleet: Fleet, figure: Callable[[str, float], None]) -> None:
    fleet.wait_for(2)
    before = [fleet.processes(index) for index in range(2)]
    controller = fleet.controller()
    with generating(fleet) as running:
        os.kill(controller, signal.SIGKILL)
        wait_until(lambda: fleet.controller() not in (0, controller))
        fleet.wait_for(2)
    figure("controller on Ray killed: longest step of 4 engines (s)", longest_step(running))
    assert [fleet.processes(index) for index in range(2)] == before


def test_servers_follow_the_sessions(fleet: Fleet) -> None:
    fleet.wait_for(2)
    with generating(fleet), Client(fleet.url) as client, ExitStack() as opened:
        for _ in range(5):  # besides those of the engines
            opened.enter_context(client.session(vocab_size=VOCAB))
        fleet.wait_for(3)
        opened.close()
        fleet.wait_for(2)
        wait_until(lambda: fleet.processes(2) == (0, 0))


def test_the_driver_is_killed(fleet: Fleet) -> None:
    """The command that changes the size is killed before the third server is ready."""
    fleet.wait_for(2)
    before = [fleet.processes(index) for index in range(2)]
    with generating(fleet):
        with fleet.cluster.ray("up", *fleet.size(3, 3)) as driver:
            assert driver.stdout is not None
            assert driver.stdout.readline() == f"list of servers: {fleet.url}\n"
            assert fleet.processes(2)[0] == 0 or fleet.addresses(3)[2] not in fleet.listed()
            driver.kill()
        fleet.wait_for(3)
        os.kill(fleet.processes(2)[1], signal.SIGKILL)  # its job has ended, and it is replaced all the same
        wait_until(lambda: fleet.listed() == fleet.addresses(2))
        fleet.wait_for(3)
    assert [fleet.processes(index) for index in range(2)] == before


def test_other_options_need_another_fleet(fleet: Fleet) -> None:
    status, output = fleet.cluster.run("up", *fleet.size(3, 3), "--no-programs")
    assert status == 1
    assert output == (
        "logitport: a fleet with other options runs: only its size can be changed while it runs; end it with "
        "`logitport ray down` first\n"
    )


def test_a_cluster_without_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command has the variable, and the cluster was started without it."""
    from logitport_fleet.options import FleetOptions
    from logitport_fleet.ray_actors import ControllerActor

    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    status = ControllerActor(FleetOptions(host="127.0.0.1")).status()
    assert status.error.startswith("RAY_AUTH_MODE is not set to token in the environment of the Ray cluster")
    assert not status.reports


def test_down(fleet: Fleet) -> None:
    """The last test of this file."""
    running = [pid for index in range(3) for pid in fleet.processes(index) if pid] + [fleet.controller()]
    started = time.monotonic()
    status, output = fleet.cluster.run("down")
    assert (status, output) == (0, "ended 4 actors\n")
    assert time.monotonic() - started < 60
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in running))
    assert fleet.cluster.run("status")[1].startswith("logitport: no fleet runs in the namespace 'logitport'")
