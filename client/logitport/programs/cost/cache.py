"""Prices on disk: a later process of the same user on the same machine reads them in less than a millisecond.

A price that is too low would let a slow program pass. Therefore only files are read that no other user can change. A
file that is damaged, or that belongs to another user, is ignored.
"""

from __future__ import annotations

import hashlib
import platform
from contextlib import suppress
from typing import TYPE_CHECKING

import orjson

from logitport.programs import private_files
from logitport.programs.cost.measurement import Measured, Price

if TYPE_CHECKING:
    from pathlib import Path

_MAX_BYTES = 1 << 18
# A price above it, in nanoseconds, is no measurement.
_MAX_NS = 1e12
# A change of what is measured, or how, makes earlier files useless.
_FORMAT = 3


def path_of(*names: str) -> Path:
    """The file for prices of this machine with these models of devices and versions of libraries."""
    named = "\0".join((str(_FORMAT), platform.node(), platform.machine(), *names))
    digest = hashlib.sha256(named.encode()).hexdigest()[:32]
    return private_files.folder() / f"prices-{digest}.json"


def load(path: Path) -> Measured | None:
    """Read prices; None if there is no file, or one that is not to be used."""
    try:
        digest, _, data = private_files.read(path, _MAX_BYTES).partition(b"\n")
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
        private_files.write(path, hashlib.sha256(data).hexdigest().encode() + b"\n" + data)


def cpu_model() -> str:
    """Name of the CPU's model."""
    with suppress(OSError, ValueError), open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
        for line in file.read(4096).splitlines():  # it has a section for each core
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()
