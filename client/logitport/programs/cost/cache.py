"""Prices on disk: a later process of the same user on the same machine reads them in less than a millisecond.

A price that is too low would let a slow program pass. Therefore only files are read that no other user can change. A
file that is damaged, or that belongs to another user, is ignored.
"""

from __future__ import annotations

import hashlib
import os
import platform
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

import orjson

from logitport.programs.cost.measurement import Measured, Price

_MAX_BYTES = 1 << 18
# A price above it, in nanoseconds, is no measurement.
_MAX_NS = 1e12
# A change of what is measured, or how, makes earlier files useless.
_FORMAT = 2


def path_of(*names: str) -> Path:
    """The file for prices of this machine with these models of devices and versions of libraries."""
    named = "\0".join((str(_FORMAT), platform.node(), platform.machine(), *names))
    digest = hashlib.sha256(named.encode()).hexdigest()[:32]
    home = os.environ.get("XDG_CACHE_HOME", "")
    folder = Path(home) if os.path.isabs(home) else Path("~/.cache").expanduser()
    return folder / "logitport" / f"prices-{digest}.json"


def load(path: Path) -> Measured | None:
    """Read prices; None if there is no file, or one that is not to be used."""
    try:
        digest, _, data = _read(path).partition(b"\n")
        if hashlib.sha256(data).hexdigest().encode() != digest:
            return None
        read = orjson.loads(data)
        operators = {key: Price(*price) for key, price in read["operators"].items()}
        measured = Measured(operators, read["byte"], read["value"])
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None
    numbers = [measured.byte, measured.value, *(number for price in operators.values() for number in price)]
    fits = all(type(number) is float and 0 < number < _MAX_NS for number in numbers)
    return measured if fits else None


def store(path: Path, measured: Measured) -> None:
    """Write prices, all or none. Without effect if the folder cannot be written."""
    operators = {key: [price.unit, price.call] for key, price in measured.operators.items()}
    data = orjson.dumps({"operators": operators, "byte": measured.byte, "value": measured.value})
    with suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(hashlib.sha256(data).hexdigest().encode() + b"\n" + data)
            os.replace(name, path)
        except BaseException:
            os.unlink(name)
            raise


def _read(path: Path) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or not (_is_private(found) and _is_private(os.stat(path.parent))):
            raise PermissionError(f"{path} is no file that only this user can change")
        data = file.read(_MAX_BYTES + 1)
    if len(data) > _MAX_BYTES:
        raise ValueError(f"{path} has more than {_MAX_BYTES} bytes")
    return data


def _is_private(found: os.stat_result) -> bool:
    """Whether this user alone can change a file or folder."""
    if not hasattr(os, "geteuid"):
        return True
    return found.st_uid == os.geteuid() and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def cpu_model() -> str:
    """Name of the CPU's model."""
    with suppress(OSError, ValueError), open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
        for line in file.read(4096).splitlines():  # it has a section for each core
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()
