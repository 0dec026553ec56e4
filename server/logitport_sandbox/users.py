"""The users of a root server's workers: each worker has a user and a group of its own, which no other process has.

The kernel counts threads, pending signals and the like by user, so one worker cannot use up the limits of another. Nor
can it signal or trace another one. The server itself stays root, which RLIMIT_NPROC does not bind.

The ids need no entry in /etc/passwd. A container with a user namespace often has the ids below 65536 only; of these,
systemd.io/UIDS-GIDS lists 60578 to 61183 as unused. The kernel has the only count of a user's processes: an id that the
front door assigns could belong to a worker of another server, also in another container.
"""

from __future__ import annotations

import os
import resource
import secrets
import stat
import sys
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from logitport_sandbox import linux, mounts
from logitport_sandbox.plan import SandboxError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

# Inside its user namespace, every worker has this id: "nobody" on the systems that give it a name.
NOBODY = 65534

ZYGOTE = 60706
WORKERS = range(60707, 61184)

# A zygote needs them to change to a worker's user, and to kill workers. The numbers are from linux/capability.h.
_CAPABILITIES = {"CAP_KILL": 5, "CAP_SETGID": 6, "CAP_SETUID": 7}
_KEPT = sum(1 << number for number in _CAPABILITIES.values())

_OPENED = "mode=0755,size=1m,nr_inodes=65536"


def lacking() -> str | None:
    """Return why workers have no users of their own here; None if they have."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "the server does not run as root, on Linux"
    held = int(_status("CapEff"), 16)
    if missing := [name for name, number in _CAPABILITIES.items() if not held >> number & 1]:
        return f"root lacks {', '.join(missing)}; give them to the container, or run the server as another user"
    if not all(map(_has_all, ("uid_map", "gid_map"))):
        return f"the user namespace of the server lacks users and groups from {ZYGOTE} to {WORKERS[-1]}"
    return None


def closed_part(path: str) -> str | None:
    """Return the first folder on the way to a path, or the path, that the mode bits close to others than its owner."""
    for each in (path, os.path.realpath(path)):
        for folder in reversed(PurePath(each).parents):
            if not os.stat(folder).st_mode & stat.S_IXOTH:
                return str(folder)
    mode = os.stat(path).st_mode
    needed = stat.S_IROTH | (stat.S_IXOTH if stat.S_ISDIR(mode) else 0)
    return None if mode & needed == needed else os.path.realpath(path)


def enter_zygote(readable: Sequence[str]) -> None:
    """In a zygote of root: drop root, and keep only the capabilities to change to the users of workers.

    Args:
        readable: what workers read. In a folder that only root can search, it gets a place in a mount namespace of the
            zygote where all users can read it.

    Raises SandboxError if root may not mount, or if the mode bits of a path itself close it.
    """
    if closed := set(map(closed_part, readable)) - {None}:
        _open_folders(sorted(filter(None, closed)), readable)
    os.umask(0o077)  # no worker reads the files of another
    linux.drop_capabilities(_KEPT)
    linux.keep_capabilities(True)
    _change(ZYGOTE)
    linux.drop_capabilities(_KEPT)
    linux.keep_capabilities(False)


def enter_worker(user: int) -> None:
    """In a fork of the zygote: become this user, without capabilities and with no way back."""
    _change(user)
    linux.drop_capabilities()
    linux.set_dumpable(False)  # fs.suid_dumpable may be 1


def fork_alone() -> int:
    """Do the same as `os.fork`. Raises BlockingIOError if another process than this one has its user."""
    limits = resource.getrlimit(resource.RLIMIT_NPROC)
    resource.setrlimit(resource.RLIMIT_NPROC, (2, limits[1]))
    child = os.fork()
    if child == 0:
        resource.setrlimit(resource.RLIMIT_NPROC, limits)
    return child


class Assigned:
    """In the zygote: the users of its workers."""

    def __init__(self) -> None:
        self._workers: dict[int, int] = {}

    def free(self) -> Iterator[int]:
        """Yield users without a worker of this zygote, in random order: zygotes do not see each other's workers."""
        for user in secrets.SystemRandom().sample(WORKERS, len(WORKERS)):
            if not self._has_worker(user):
                yield user

    def assign(self, user: int, worker: int) -> None:
        """Keep that the process with this id has the user, until it is waited for."""
        self._workers[user] = worker

    def _has_worker(self, user: int) -> bool:
        try:
            os.kill(self._workers[user], 0)
        except (KeyError, ProcessLookupError):
            return False
        return True


def _change(user: int) -> None:
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)


def _open_folders(closed: Sequence[str], readable: Iterable[str]) -> None:
    """Cover the closed folders, but for the readable paths below them. Raises SandboxError."""
    paths = sorted({place for path in readable for place in (path, os.path.realpath(path))})
    for part in closed:
        if part in paths or part == "/":
            raise _closed(part, f"chmod -R o+rX {part}")
    os.umask(0o022)
    try:
        linux.unshare(linux.CLONE_NEWNS)
        mounts.cover(closed, _OPENED, paths)
    except OSError as error:
        raise _closed(closed[0], f"chmod o+x {closed[0]}") from error


def _closed(part: str, remedy: str) -> SandboxError:
    return SandboxError(
        f"the server runs as root, and workers as other users, but only root can read {part}, where their Python is: "
        f"run `{remedy}`, or install Python and logitport where all users can read them, such as /opt"
    )


def _has_all(name: str) -> bool:
    """Whether the user namespace of this process has all ids."""
    ranges = [(int(first), int(count)) for first, _, count in map(str.split, _lines(name))]
    return any(first <= ZYGOTE and WORKERS[-1] < first + count for first, count in ranges)


def _status(name: str) -> str:
    return next(line.partition(":")[2].strip() for line in _lines("status") if line.startswith(f"{name}:"))


def _lines(name: str) -> list[str]:
    return Path("/proc/self", name).read_text(encoding="ascii").splitlines()
