"""Output of shipped code in a worker: kept for the reply to the call, within a limit.

Only output of the main thread during a call is kept. A thread that shipped code has started may write at any time, also
in a call for another request. So may a finalizer. Its output while the worker drops states, or in a garbage
collection, is kept, but is in no error.
"""

from __future__ import annotations

import gc
import io
import logging
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn, cast

from logitport.system.installation import OUR_PACKAGES
from logitport_server.worker.messages import MAX_ERROR_OUTPUT_LENGTH, MAX_OUTPUT_LENGTH

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from _typeshed import ReadableBuffer

# Of the begin, and of the end. The rest is for the line between them.
_PART_BYTES = MAX_OUTPUT_LENGTH // 2 - 40


class Output(io.RawIOBase):
    """A stream that keeps the begin and the end of what is written in one call.

    Attributes:
        own_bytes: how much was written in the call, without the output of others.
    """

    def __init__(self) -> None:
        self.own_bytes = 0
        self._own_tail = bytearray()
        self._size_bytes = 0
        self._head = bytearray()
        self._tail = bytearray()
        self._thread = 0  # its output is kept; 0 between calls
        self._others = 0  # depth of the contexts of `of_others`

    def begin(self) -> None:
        """Begin a call: forget the previous one."""
        self._thread = threading.get_ident()
        if self._size_bytes:
            self.own_bytes = self._size_bytes = 0
            self._own_tail.clear()
            self._head.clear()
            self._tail.clear()

    def end(self) -> str:
        """End the call. Returns its output."""
        self._thread = 0
        if not self._size_bytes:
            return ""
        left_out = self._size_bytes - len(self._head) - _PART_BYTES
        if left_out > 0:
            between = f"\n[{left_out} bytes left out]\n"
            return _text(self._head) + between + _text(self._tail[-_PART_BYTES:])
        return _text(self._head + self._tail[len(self._tail) - (self._size_bytes - len(self._head)) :])

    def since(self, own_bytes: int) -> str:
        """Return the end of what was written since `own_bytes` had this value, without the output of others."""
        new = min(self.own_bytes - own_bytes, MAX_ERROR_OUTPUT_LENGTH)
        return _text(self._own_tail[len(self._own_tail) - new :])

    @contextmanager
    def of_others(self) -> Iterator[None]:
        """Context for finalizers that belong to other requests than the call's, and may write."""
        self._others += 1
        try:
            yield
        finally:
            self._others -= 1

    def on_collection(self, phase: str, _: Mapping[str, int]) -> None:
        """Note that a garbage collection begins or ends, as one of `gc.callbacks`."""
        if threading.get_ident() == self._thread:
            self._others += 1 if phase == "start" else -1

    def fileno(self) -> int:
        return 1  # of a worker, /dev/null; `faulthandler` and some loggers need one

    def writable(self) -> bool:
        return True

    def write(self, data: ReadableBuffer) -> int:
        written = bytes(data)
        if threading.get_ident() == self._thread:
            self._size_bytes += len(written)
            self._head += written[: _PART_BYTES - len(self._head)]
            _append(self._tail, written)
            if not self._others:
                self.own_bytes += len(written)
                _append(self._own_tail, written)
        return len(written)


def capture() -> Output:
    """Use a new `Output` as the standard output and error, and for the records of `logging` from INFO on."""
    output = Output()
    gc.callbacks.append(output.on_collection)
    stream = io.TextIOWrapper(cast("Any", output), "utf-8", "backslashreplace", write_through=True)
    sys.stdout = sys.stderr = stream
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    for ours in OUR_PACKAGES:
        logging.getLogger(ours).setLevel(logging.ERROR)
    sys.breakpointhook = _refuse_breakpoint
    return output


def _refuse_breakpoint(*_: Any, **__: Any) -> NoReturn:
    raise RuntimeError(
        "breakpoint() cannot stop here, because the processor runs in a worker, without a terminal: run the same chain "
        "in your own process with logitport_testing.simulate, where breakpoint() works, or use print, which "
        "Client.logs returns (docs/processor-reference.md, Debug)"
    )


def _append(tail: bytearray, written: bytes) -> None:
    """Append to the end of an output. Keeps at least `MAX_OUTPUT_LENGTH` bytes of it."""
    tail += written[-MAX_OUTPUT_LENGTH:]
    if len(tail) > 4 * MAX_OUTPUT_LENGTH:
        del tail[:-MAX_OUTPUT_LENGTH]


def _text(data: bytes | bytearray) -> str:
    return data.decode(errors="replace")
