"""Attempts on files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from logitport_sandbox.verification.attempts.base import first_that_works, stopped_by

if TYPE_CHECKING:
    from logitport_sandbox.verification.attempts.base import Targets


@stopped_by("bubblewrap", "landlock")
def _read_the_host(targets: Targets) -> object:
    """Read the host's files."""
    return first_that_works(Path.read_bytes, Path("/etc/shadow"), Path("/etc/passwd"), Path("/etc/hostname"))


@stopped_by("bubblewrap", "landlock")
def _list_the_host(targets: Targets) -> object:
    """List the host's folders."""
    return first_that_works(os.listdir, Path("/home"), Path("/var"), Path("/run"), Path("/etc/ssl"))


@stopped_by("bubblewrap", "landlock")
def _write_to_python(targets: Targets) -> object:
    """Write to the folders that all workers read."""
    package = Path(__file__).parents[2]
    return first_that_works(_write_in, package, Path("/"), Path("/dev"), Path("/etc"), Path("/usr/lib"))


def _write_in(folder: Path) -> None:
    path = folder / f"written-{os.getpid()}"
    path.touch()
    path.unlink()


@stopped_by("namespaces", "landlock", "users")
def _read_siblings_file(targets: Targets) -> object:
    """Read another worker's temporary files."""
    return Path(targets.sibling_file).read_text()


@stopped_by("namespaces", "landlock")
def _fill_the_disk(targets: Targets) -> object:
    """Fill the disk, many files at a time."""
    written = []
    try:
        for number in range(4):
            path = Path(f"/tmp/filled-{os.getpid()}-{number}")  # noqa: S108
            written.append(path)
            path.write_bytes(bytes(targets.limits.temporary_bytes // 2))
    finally:
        for path in written:
            path.unlink(missing_ok=True)
    return written


@stopped_by("limits", "namespaces", "landlock")
def _write_a_large_file(targets: Targets) -> object:
    """Write one file larger than its temporary folder."""
    path = Path(f"/dev/shm/large-{os.getpid()}")  # noqa: S108
    try:
        path.write_bytes(bytes(targets.limits.temporary_bytes + 1))
    finally:
        path.unlink(missing_ok=True)
    return path


@stopped_by("namespaces", "landlock")
def _go_through_proc(targets: Targets) -> object:
    """Look around in /proc."""
    return first_that_works(Path.read_bytes, Path("/proc/self/maps"), Path("/proc/1/cmdline"), Path("/proc/kallsyms"))


@stopped_by("bubblewrap", "namespaces", "landlock")
def _write_kernel_settings(targets: Targets) -> object:
    """Change the kernel's settings."""
    path = Path("/proc/sys/kernel/core_pattern")
    path.write_bytes(path.read_bytes())
    return path
