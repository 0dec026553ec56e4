"""The user that workers of a server that runs as root are, and that every worker is to itself."""

from __future__ import annotations

import os
import stat

# "nobody" on the systems that give that user a name.
NOBODY = 65534


def become_nobody() -> None:
    """Give up root for good; nothing is done by a process that is not root.

    Nor where there is no such user: in the user namespace of a container that knows one user alone, which to the kernel
    is not root.
    """
    if os.geteuid() != 0 or not _is_known(NOBODY):
        return
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)


def is_open_to_nobody(path: str) -> bool:
    """Whether the mode bits let every user read the path and search the folders above it."""
    above = path
    while above != "/":
        above = os.path.dirname(above)
        if not os.stat(above).st_mode & stat.S_IXOTH:
            return False
    return bool(os.stat(path).st_mode & stat.S_IROTH)


def _is_known(user: int) -> bool:
    with open("/proc/self/uid_map", encoding="ascii") as file:
        ranges = [(int(first), int(count)) for first, _, count in map(str.split, file)]
    return any(first <= user < first + count for first, count in ranges)
