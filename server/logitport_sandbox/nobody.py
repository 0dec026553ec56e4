"""The user of the workers of a root server. Inside its user namespace, every worker has this user id."""

from __future__ import annotations

import os
import stat

# "nobody" on the systems that give that user a name.
NOBODY = 65534


def become_nobody() -> None:
    """Drop root for good. A process that is not root is not changed.

    A process is not changed either if its user namespace has no such user: a container with a single user, which is
    not root outside.
    """
    if not becomes_nobody():
        return
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)


def becomes_nobody() -> bool:
    """Whether `become_nobody` changes this process."""
    return os.geteuid() == 0 and _is_known(NOBODY)


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
