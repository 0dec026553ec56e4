"""What the machine permits, read from files of cgroups, and what principals need."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from logitport_server.config import ServerConfig
from logitport_server.front_door import machine
from logitport_server.front_door.setups import setup_of
from logitport_server.lifecycle.start_errors import StartupError
from logitport_server.principal_process.kernel_limits import STACK_BYTES

if TYPE_CHECKING:
    from pathlib import Path

PHYSICAL = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
CONFIG = ServerConfig()


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    folder = tmp_path / "proc"
    (folder / "self").mkdir(parents=True)
    (folder / "self/cgroup").write_text("8:pids:/\n4:memory:/outer/inner\n1:cpu,cpuacct:/\n0::/outer/inner\n")
    return folder


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "cgroup"
    (folder / "outer/inner").mkdir(parents=True)
    return folder


def test_memory_is_the_least_of_the_machine_and_the_cgroups_above_a_process(
    root: Path, proc: Path, tmp_path: Path
) -> None:
    assert machine.memory_bytes(tmp_path, tmp_path) == PHYSICAL
    assert 0 < machine.memory_bytes() <= PHYSICAL
    first_version = root / "memory/outer/inner/memory.limit_in_bytes"
    first_version.parent.mkdir(parents=True)
    for file, text, expected in (
        (root / "outer/inner/memory.max", "max\n", PHYSICAL),
        (root / "outer/memory.max", f"{1 << 28}\n", 1 << 28),
        (root / "outer/inner/memory.max", f"{1 << 27}\n", 1 << 27),
        (first_version, "9223372036854771712\n", 1 << 27),
        (first_version, f"{1 << 26}\n", 1 << 26),
    ):
        file.write_text(text)
        assert machine.memory_bytes(root, proc) == expected


@pytest.mark.parametrize("memory", [1 << 28, 1 << 34, 1 << 40])
def test_the_limit_of_a_process_is_half_of_the_machine_or_what_requests_may_need(memory: int) -> None:
    limits = CONFIG.session_limits
    limit = machine.process_limit(CONFIG, memory)
    assert limit >= memory // 2
    assert limit >= limits.max_principal_memory + 2 * limits.max_message_bytes
    assert limit < max(memory, 6 << 30)


def test_the_limit_of_a_process_has_the_stacks_of_all_its_threads() -> None:
    few, many = (machine.process_limit(ServerConfig(max_sessions_per_principal=n), 0) for n in (64, 128))
    assert few - machine.principal_bytes(CONFIG.session_limits) >= (64 * 2 + 64 + 64) * STACK_BYTES
    assert many - few == 64 * 2 * STACK_BYTES


def test_the_setup_has_the_limit() -> None:
    assert setup_of(CONFIG).process_memory == machine.process_limit(CONFIG, machine.memory_bytes())


def test_a_processor_that_cannot_be_serialized_stops_the_start() -> None:
    lock = threading.Lock()

    def locks() -> None:
        lock.acquire()

    locks.state = sys._getframe()  # type: ignore[attr-defined]
    with pytest.raises(StartupError, match=r"processor .*locks cannot be sent .*--logits-processors MODULE:CLASS"):
        setup_of(CONFIG, [locks])


def test_a_large_machine_has_enough(root: Path, proc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "memory_bytes", lambda *_: 1 << 36)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert [need.warning for need in machine.needs(CONFIG, root, proc)] == [None, None]


def test_a_small_container_is_a_warning(root: Path, proc: Path) -> None:
    (root / "outer/memory.max").write_text(f"{1 << 28}")
    (root / "outer/inner/pids.max").write_text("100")
    memory, tasks = (need.warning or "" for need in machine.needs(CONFIG, root, proc))
    assert memory.startswith("256 MiB of memory (of the machine or the container) are too few for all sessions")
    assert "raise memory.max" in memory
    assert tasks.startswith(f"100 processes and threads ({root}/outer/inner/pids.max) are too few")
    assert "pids.max of a container" in tasks
    assert "--max-sessions-per-principal" in memory
    assert "--max-sessions-per-principal" in tasks
    assert [need.warning for need in machine.needs(ServerConfig(max_sessions_per_principal=1), root, proc)][1]


def test_the_limit_of_a_users_processes(tmp_path: Path) -> None:
    program = (
        "import os, sys; from pathlib import Path; from logitport_server.front_door import machine\n"
        "os.geteuid = lambda: 1000\n"
        "print(*machine.max_tasks(Path(sys.argv[1]), Path(sys.argv[1])))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NPROC, (3000, 3000)),
    )
    assert done.stdout == "3000 ulimit -u\n"
