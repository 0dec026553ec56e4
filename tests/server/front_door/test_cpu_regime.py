"""How the CPU is divided, in copies of the files of cgroups: few machines permit real ones."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from logitport_sandbox.cgroups import WorkerCgroups
from logitport_server.front_door import cpu_regime
from tests.event_loops import on_loop
from tests.server.front_door.joined import joined
from tests.waiting import wait_until


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Where cgroups and procfs are mounted, on a machine with autogroups and without cgroups."""
    root, proc = tmp_path / "cgroup", tmp_path / "proc"
    root.mkdir()
    (proc / "self").mkdir(parents=True)
    (proc / "sys/kernel").mkdir(parents=True)
    (proc / "sys/kernel/sched_autogroup_enabled").write_text("1\n")
    (proc / "self/cgroup").write_text("0::/\n")
    monkeypatch.setattr(Path, "rmdir", shutil.rmtree)  # the kernel removes the files of a cgroup with it
    return root, proc


def add_cgroup(machine: tuple[Path, Path], path: str, *, has_cpu: bool) -> Path:
    """Let this process be in the cgroup, with others."""
    root, proc = machine
    (root / "cgroup.controllers").write_text("cpuset cpu memory pids")
    (proc / "self/cgroup").write_text(f"0::/{path}\n")
    own = root / path
    own.mkdir(parents=True, exist_ok=True)
    (own / "cgroup.controllers").write_text("cpu memory pids" if has_cpu else "pids")
    (own / "cgroup.procs").write_text(f"1\n{os.getpid()}\n")
    (own / "cgroup.subtree_control").write_text("")
    if has_cpu:
        (own / "cpu.weight").write_text("100")
    return own


def delegate(machine: tuple[Path, Path]) -> Path:
    own = add_cgroup(machine, "logitport.service", has_cpu=True)
    (own / "cgroup.procs").write_text(f"{os.getpid()}\n")
    return own


def divided(machine: tuple[Path, Path]) -> tuple[Path, cpu_regime.ProcessCgroups]:
    """The server's own cgroup, and those of processes below it."""
    own = delegate(machine)
    cgroups = cpu_regime.begin(*machine).cgroups
    assert cgroups is not None
    return own, cgroups


def names(machine: tuple[Path, Path]) -> set[str]:
    return {each(*machine).name for each in (cpu_regime.look, cpu_regime.begin)}


@pytest.mark.parametrize(
    ("path", "has_cpu", "name"),
    [
        ("", False, "autogroup"),
        ("user.slice", False, "autogroup"),
        # In a cgroup with a share of the CPU, autogroups have no effect.
        ("system.slice", True, "threads"),
        ("system.slice/logitport.service", False, "threads"),
    ],
)
def test_autogroups_of_version_two(machine: tuple[Path, Path], path: str, has_cpu: bool, name: str) -> None:
    if path.startswith("system.slice"):
        add_cgroup(machine, "system.slice", has_cpu=True)
    own = add_cgroup(machine, path, has_cpu=has_cpu)
    assert names(machine) == {name}
    reason = f"in a cgroup with a share of the CPU, {machine[0] / 'system.slice'}"
    assert (reason in cpu_regime.look(*machine).description) == (name == "threads")
    (own / "cgroup.type").write_text("domain")  # the cgroup of a container looks like the root
    assert names(machine) == ({"threads"} if not path else {name})


@pytest.mark.parametrize(
    ("group", "agent", "name"), [("/", False, "threads"), ("/", True, "autogroup"), ("/group", True, "threads")]
)
def test_autogroups_of_version_one(machine: tuple[Path, Path], group: str, agent: bool, name: str) -> None:
    """The root of a container has no release agent."""
    root, proc = machine
    (proc / "self/cgroup").write_text(f"4:memory:/process\n1:cpu,cpuacct:{group}\n0::/\n")
    (root / "cpu,cpuacct").mkdir()
    if agent:
        (root / "cpu,cpuacct/release_agent").write_text("")
    assert names(machine) == {name}


@pytest.mark.parametrize("setting", ["0\n", None])
def test_a_kernel_without_autogroups(
    machine: tuple[Path, Path], setting: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    file = machine[1] / "sys/kernel/sched_autogroup_enabled"
    file.unlink() if setting is None else file.write_text(setting)
    with caplog.at_level(logging.INFO):
        assert names(machine) == {"threads"}
    (record,) = caplog.records
    for part in ("does not divide the CPU among principals", "Delegate=cpu memory pids", "no cgroup v2 is mounted"):
        assert part in record.message


def test_a_look_changes_nothing(machine: tuple[Path, Path]) -> None:
    own = delegate(machine)
    before = sorted(own.iterdir())
    assert cpu_regime.look(*machine).name == "cgroup"
    assert sorted(own.iterdir()) == before


def test_workers_and_principals_share_the_servers_cgroup(machine: tuple[Path, Path]) -> None:
    own = delegate(machine)
    workers = WorkerCgroups.open(*machine)
    (machine[1] / "self/cgroup").write_text("0::/logitport.service/server\n")
    regime = cpu_regime.begin(*machine)
    assert regime.name == "cgroup"
    assert regime.cgroups is not None
    assert regime.cgroups.path == own / "principals"
    assert workers.path == own / "workers"
    assert (own / "server/cgroup.procs").read_text() == str(os.getpid())
    assert (own / "principals/cgroup.subtree_control").read_text() == "+cpu +memory +pids"
    assert WorkerCgroups.open(*machine).path == own / "workers"
    regime.cgroups.close()


@on_loop
async def test_a_process_has_a_cgroup_until_it_ends(machine: tuple[Path, Path]) -> None:
    own, cgroups = divided(machine)

    def groups() -> list[str]:
        return [file.read_text() for file in (own / "principals").glob("process-*/cgroup.procs")]

    async with joined({}) as first, joined({}) as second:
        for process in (first.process, second.process):
            cgroups.begin(process)
        expected = {str(first.process.process_id), str(second.process.process_id)}
        await asyncio.to_thread(wait_until, lambda: set(groups()) == expected)
    await asyncio.to_thread(wait_until, lambda: not groups())
    cgroups.close()
    assert not list((own / "principals").glob("process-*"))


def test_a_cgroup_that_is_in_use_at_the_end_of_its_process_is_removed_later(
    machine: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    own, cgroups = divided(machine)
    tried = []

    def busy(path: Path) -> None:
        tried.append(path)
        raise OSError(16, "Device or resource busy")

    async def serve() -> None:
        async with joined({}) as one:
            cgroups.begin(one.process)
        await asyncio.to_thread(wait_until, lambda: tried)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "rmdir", busy)
        asyncio.run(serve())
    assert list((own / "principals").glob("process-*"))
    cgroups.close()
    assert not list((own / "principals").glob("process-*"))


def test_another_process_with_the_number_of_one_that_has_ended_is_moved_back(
    machine: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    own, cgroups = divided(machine)
    returned = own / "server/cgroup.procs"
    returned.unlink()

    async def serve() -> None:
        async with joined({}) as one:

            def end_first(path: Path, *arguments: Any, **options: Any) -> None:
                one.sleeper.kill()
                one.sleeper.wait()
                mkdir(path, *arguments, **options)

            mkdir = Path.mkdir
            with monkeypatch.context() as patched:
                patched.setattr(Path, "mkdir", end_first)
                cgroups.begin(one.process)
                await asyncio.to_thread(wait_until, returned.exists)
            await asyncio.to_thread(wait_until, lambda: returned.read_text() == str(one.process.process_id))

    # The process may be noticed as ended before `_return`: real cgroups with processes are not removed.
    monkeypatch.setattr(Path, "rmdir", lambda path: None)
    asyncio.run(serve())
    cgroups.close()


@on_loop
async def test_a_cgroup_that_cannot_be_created_is_one_warning(
    machine: tuple[Path, Path], caplog: pytest.LogCaptureFixture
) -> None:
    own, cgroups = divided(machine)
    shutil.rmtree(own / "principals")
    async with joined({}) as one:
        cgroups.begin(one.process)
        cgroups.begin(one.process)
    cgroups.close()
    (record,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert "a principal's process has no cgroup of its own" in record.message
