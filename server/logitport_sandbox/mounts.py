"""Empty folders in place of others, in a mount namespace of this process."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from logitport_sandbox import linux

if TYPE_CHECKING:
    from collections.abc import Iterable


def cover(folders: Iterable[str], options: str, kept: Iterable[str]) -> None:
    """Mount an empty folder over each of these. What is kept below them stays, read-only. Raises OSError."""
    linux.mount("", "/", "", linux.MS_REC | linux.MS_PRIVATE)
    covered = tuple(f"{folder}/" for folder in folders)
    opened = [(path, os.open(path, os.O_PATH)) for path in kept if path.startswith(covered)]
    for folder in folders:
        mount_empty(folder, options)
    for path, handle in opened:
        _mount_again(path, handle)


def mount_empty(folder: str, options: str, flags: int = 0) -> None:
    """Mount an empty folder, with these options of tmpfs, over this one. Raises OSError."""
    hardened = linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC
    linux.mount("tmpfs", folder, "tmpfs", hardened | flags, options)


def _mount_again(path: str, handle: int) -> None:
    """Mount read-only what was at the path before its parent was covered."""
    if os.path.isdir(f"/proc/self/fd/{handle}"):
        os.makedirs(path, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        os.close(os.open(path, os.O_CREAT, 0o400))
    linux.mount(f"/proc/self/fd/{handle}", path, "", linux.MS_BIND | linux.MS_REC)
    flags = linux.MS_REMOUNT | linux.MS_BIND | linux.MS_RDONLY | linux.MS_NOSUID | linux.MS_NODEV
    linux.mount("", path, "", flags)
    os.close(handle)
