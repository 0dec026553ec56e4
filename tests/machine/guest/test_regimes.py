"""The three ways in which the kernel divides the CPU among principals: an innocent engine beside 64 hostile sessions.

The engines are on the server's host, and are its user: `local` is their default, and what the limit is for.
"""

from __future__ import annotations

import json
import statistics
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from tests.machine.guest.service import ROOT, systemctl, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.machine.guest.service import Service

# The unit's settings, and what the log says.
REGIMES = {
    "autogroup": (["Delegate=no"], "by autogroups"),
    "cgroup": ([], "by a cgroup for each process"),
    "plain cgroup": (["Delegate=no", "CPUWeight=100"], "but among threads"),
}
USER = ["DynamicUser=no", "User=games", "PrivateTmp=no", "Nice=0"]
SESSIONS, HELPERS, ROUNDS = 64, 2, 5
MAX_RATIO = 3.0


def engine(unit: str, *arguments: object) -> list[str]:
    """The command that runs an engine in a unit of its own."""
    python = "/opt/machine/environment/bin/python"
    run = ["systemd-run", "--quiet", "--collect", "--pipe", "--wait", f"--unit={unit}", "--property=User=games"]
    return [*run, python, str(ROOT / "tests/machine/guest/load.py"), *map(str, arguments)]


@contextmanager
def running(*commands: list[str]) -> Iterator[list[subprocess.Popen[str]]]:
    """Processes with a first line, which they have written. They end with the context."""
    started = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for command in commands
    ]
    try:
        for process in started:
            assert process.stdout is not None
            assert process.stdout.readline()
        yield started
    finally:
        for command in commands:
            (unit,) = [part.partition("=")[2] for part in command if part.startswith("--unit=")]
            subprocess.run(["systemctl", "kill", "-s", "SIGKILL", unit], check=False, capture_output=True)
        for process in started:
            process.communicate()


@pytest.mark.parametrize("transport", ["local", "grpc"])
@pytest.mark.parametrize("regime", REGIMES)
def test_an_innocent_engine_beside_hostile_sessions(
    service: Service, regime: str, transport: str, record_property: Callable[[str, object], None]
) -> None:
    settings, text = REGIMES[regime]
    service.start(*USER, *settings)
    assert text in service.log()
    hostile = [f"hostile-{number}" for number in range(HELPERS)]
    of_each = SESSIONS // HELPERS
    commands = [engine(unit, "hostile", transport, service.tokens["other"], of_each) for unit in hostile]
    rounds = []
    with running(*commands, engine("innocent", "innocent", transport, service.tokens["engine"])) as (*_, innocent):
        assert innocent.stdin is not None
        assert innocent.stdout is not None

        def measure() -> list[float]:
            innocent.stdin.write("\n")
            innocent.stdin.flush()
            return json.loads(innocent.stdout.readline())

        for _ in range(ROUNDS):
            for unit in hostile:
                systemctl("kill", "-s", "SIGSTOP", unit)
            wait_for(_idle, 10.0)
            alone = measure()
            for unit in hostile:
                systemctl("kill", "-s", "SIGCONT", unit)
            rounds.append((alone, measure()))
    ratio = statistics.median(beside[1] / alone[1] for alone, beside in rounds)
    record_property("regime", regime)
    record_property("transport", transport)
    record_property("ratio", round(ratio, 2))
    for name, index in (("alone_ms", 0), ("beside_ms", 1)):
        values = [statistics.median(each[index][which] for each in rounds) for which in range(3)]
        record_property(name, [round(value, 2) for value in values])
    if transport == "local" and regime != "plain cgroup":
        assert ratio <= MAX_RATIO, rounds


def _idle() -> bool:
    """Whether the steps that the hostile engines had sent are computed."""
    with open("/proc/loadavg") as file:
        return int(file.read().split()[3].split("/")[0]) <= 1
