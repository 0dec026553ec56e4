"""Files of the user's cache that no other user can change. Others could lower prices, or add code."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path


def folder() -> Path:
    """The folder `logitport` of the user's cache, `$XDG_CACHE_HOME`."""
    home = os.environ.get("XDG_CACHE_HOME", "")
    cache = Path(home) if os.path.isabs(home) else Path("~/.cache").expanduser()
    return cache / "logitport"


def _open(path: str, _: int) -> int:
    return os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))


def read(path: Path, max_bytes: int) -> bytes:
    """Read a file.

    Raises:
        OSError: it is not readable, no regular file, or another user can change it or its folder.
        ValueError: it is longer.
    """
    with open(path, "rb", opener=_open) as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode) or not (_is_private(found) and _is_private(os.stat(path.parent))):
            raise PermissionError(f"{path} is no file that only this user can change")
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise ValueError(f"{path} has more than {max_bytes} bytes")
    return data


def write(path: Path, data: bytes) -> None:
    """Write a file, all of it or nothing. Raises OSError."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def check_ancestors(path: Path) -> None:
    """Check that no other user can replace a folder above a file. The path must be resolved.

    Raises:
        OSError: a folder belongs to another user than root and this one, or others can write to it.
    """
    for above in path.parents:
        found = os.stat(above)
        shared = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not found.st_mode & stat.S_ISVTX
        if shared or found.st_uid not in (0, os.geteuid()):
            raise PermissionError(f"{above} is a folder that another user can change")


def _is_private(found: os.stat_result) -> bool:
    """Whether this user alone can change a file or folder."""
    if not hasattr(os, "geteuid"):
        return True
    return found.st_uid == os.geteuid() and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
