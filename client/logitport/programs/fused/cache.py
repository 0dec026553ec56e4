"""Shared objects on disk, in the folder `fused` of the cache. One is loaded only if no other user can have changed it.

An entry is two files: `KEY.sha256` has the digest of the object `KEY-DIGEST.so`, and is written last.
"""

from __future__ import annotations

import hashlib
import platform
from contextlib import suppress
from typing import TYPE_CHECKING

from logitport.programs import private_files
from logitport.programs.fused.compiler import OPTIONS

if TYPE_CHECKING:
    from pathlib import Path

    from logitport.programs.fused.compiler import Compiler

_MAX_BYTES = 16 << 20
_MAX_ENTRIES = 512
_HEX_DIGITS = 64
# Lines of /proc/cpuinfo on which -march=native depends.
_CPU_LINES = ("model name", "flags", "Features", "CPU implementer", "CPU part", "CPU variant")


def key_of(source: str, compiler: Compiler) -> str:
    """The key of an entry: of the source, the compiler, its options, and this CPU with its features."""
    named = (source, *compiler.command, compiler.version, *OPTIONS, platform.machine(), _cpu())
    return hashlib.sha256("\0".join(named).encode()).hexdigest()


def load(key: str) -> Path | None:
    """The path of a shared object that may be loaded; None if there is none."""
    try:
        folder = _folder()
        digest = private_files.read(folder / f"{key}.sha256", _HEX_DIGITS).decode("ascii")
        return checked(folder / f"{key}-{digest}.so", digest)
    except (OSError, ValueError):
        return None


def checked(path: Path, digest: str) -> Path:
    """Check a shared object before it is loaded. Returns its resolved path.

    Raises:
        OSError: it does not exist, or another user can change it.
        ValueError: it has another SHA-256.
    """
    if path.parent != _folder():
        raise PermissionError(f"{path} is not in the cache")
    private_files.check_ancestors(path)
    if hashlib.sha256(private_files.read(path, _MAX_BYTES)).hexdigest() != digest:
        raise ValueError(f"{path} has another SHA-256")
    return path


def store(key: str, data: bytes) -> Path:
    """Store a shared object, and return its path. Raises OSError."""
    _folder(create=True)
    folder = _folder()
    digest = hashlib.sha256(data).hexdigest()
    path = folder / f"{key}-{digest}.so"
    private_files.write(path, data)
    private_files.write(folder / f"{key}.sha256", digest.encode())
    _remove_oldest(folder)
    return path


def digest_of(path: Path) -> str:
    """The SHA-256 that the name of a shared object has."""
    return path.stem.rpartition("-")[2]


def _folder(*, create: bool = False) -> Path:
    folder = private_files.folder() / "fused"
    if create:
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
    return folder.resolve()


def _remove_oldest(folder: Path) -> None:
    with suppress(OSError):
        files = sorted(folder.glob("*-*.so"), key=lambda file: file.stat().st_mtime)
        for file in files[: max(0, len(files) - _MAX_ENTRIES)]:
            (folder / f"{file.stem.partition('-')[0]}.sha256").unlink(missing_ok=True)
            file.unlink(missing_ok=True)


def _cpu() -> str:
    """The model and the features of the first core. Raises OSError where they are not known."""
    with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
        lines = file.read(1 << 16).partition("\n\n")[0].splitlines()
    return "\n".join(line for line in lines if line.startswith(_CPU_LINES))
