"""Faults of SQLite's system calls, by the interface that SQLite's own tests use (xSetSystemCall).

A fault writes the first half of the data.
"""

from __future__ import annotations

import _sqlite3
import ctypes
import errno
import os
import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

_SetSystemCall = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
_GetSystemCall = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)
_Pwrite = ctypes.CFUNCTYPE(
    ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int64, use_errno=True
)
# The pointers of a sqlite3_vfs before xSetSystemCall, without pNext, zName and pAppData.
_METHODS_BEFORE = 13


class _Vfs(ctypes.Structure):
    _fields_ = (
        ("iVersion", ctypes.c_int),
        ("szOsFile", ctypes.c_int),
        ("mxPathname", ctypes.c_int),
        ("others", ctypes.c_void_p * (3 + _METHODS_BEFORE)),
        ("xSetSystemCall", _SetSystemCall),
        ("xGetSystemCall", _GetSystemCall),
    )


class FaultyDisk:
    """Counts SQLite's writes. From number `at` on, from 1, they fail.

    Args:
        at: the number of the first write that fails; None for no fault.
        fault: "once": this write finds a full disk; "stays full": later ones, too; "broken": they have an I/O error;
            "killed": the process is killed.
    """

    def __init__(self, at: int | None = None, fault: str = "") -> None:
        self.calls = 0
        self._at = at
        self._fault = fault

    @contextmanager
    def mounted(self) -> Iterator[FaultyDisk]:
        """Use it for all databases of this process. Skips the test if this SQLite has no such interface."""
        try:
            library = ctypes.CDLL(_sqlite3.__file__)
            find = library.sqlite3_vfs_find
        except (OSError, AttributeError):
            pytest.skip("the symbols of this Python's SQLite are hidden")
        find.restype = ctypes.POINTER(_Vfs)
        vfs = find(None)
        callbacks: list[Any] = []
        for name in (b"pwrite", b"pwrite64"):
            address = vfs.contents.xGetSystemCall(ctypes.cast(vfs, ctypes.c_void_p), name)
            if address:
                callbacks.append(_Pwrite(self._faulty(_Pwrite(address))))
                pointer = ctypes.cast(callbacks[-1], ctypes.c_void_p)
                vfs.contents.xSetSystemCall(ctypes.cast(vfs, ctypes.c_void_p), name, pointer)
        assert callbacks
        try:
            yield self
        finally:
            for name in (b"pwrite", b"pwrite64"):
                vfs.contents.xSetSystemCall(ctypes.cast(vfs, ctypes.c_void_p), name, None)

    def _faulty(self, pwrite: Any) -> Any:
        def call(descriptor: int, data: int, length: int, offset: int) -> int:
            self.calls += 1
            if not self._fails():
                return int(pwrite(descriptor, data, length, offset))
            pwrite(descriptor, data, length // 2, offset)
            if self._fault == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            ctypes.set_errno(errno.EIO if self._fault == "broken" else errno.ENOSPC)
            return -1

        return call

    def _fails(self) -> bool:
        if self._at is None or self.calls < self._at:
            return False
        return self.calls == self._at or self._fault != "once"


def faults(limit: int = 500) -> Iterator[int]:
    """Yield the numbers of writes, for a loop that breaks when there was no fault."""
    yield from range(1, limit)
    pytest.fail("there are too many writes")
