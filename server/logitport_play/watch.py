"""Stops code of the user's files that does not return."""

from __future__ import annotations

import ctypes
import sys
import time
from threading import Thread, current_thread
from typing import TYPE_CHECKING, Any

from logitport.errors import InvalidArgument, ProcessorFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from types import FrameType

# A model, a tokenizer and a grammar may take long. Only code of the user's files has a limit.
LIMIT_SECONDS = 10.0
# How long code may go on after it was stopped. C code, such as a sleep, cannot be stopped.
GRACE_SECONDS = 3.0
# How often frames are looked at within the limit. Rarely, and not in short calls: CPython 3.11.7 crashed once while the
# frames of a running thread were walked.
_POLLS = 10


class _Stopped(ProcessorFailed):
    """Raised inside the code that does not return. Python creates it without arguments."""

    def __init__(self) -> None:
        super().__init__(
            f"it did not return within {LIMIT_SECONDS:g} s, and was stopped; the step was given up: look for a loop"
        )


class Watched:
    """Runs a function on a thread of its own, and stops code of these files in it that does not return.

    Attributes:
        stopped: whether code was stopped.
    """

    def __init__(self, function: Callable[[], Any], files: Collection[str]) -> None:
        self._function = function
        self._files = files
        self._result: Any = None
        self._error: BaseException | None = None
        self._thread = Thread(target=self._call, name="logitport-play", daemon=True)
        self.stopped = False

    def run(self) -> Any:
        """Run the function, and return its result.

        Raises:
            InvalidArgument: code could not be stopped. Its thread goes on, so nothing that it uses can be used again.
        """
        self._thread.start()
        try:
            self._wait()
        finally:
            if self.stopped:
                _settle()
        if self._error is not None:
            raise self._error
        return self._result

    def _wait(self) -> None:
        """Wait for the thread, and stop it if it runs too long. Raises the errors of `run`."""
        entered: float | None = None  # when code of the files began that has not returned
        poll_seconds = LIMIT_SECONDS / _POLLS
        self._thread.join(poll_seconds)
        while self._thread.is_alive():
            frame, now = self._frame(), time.monotonic()
            entered = None if frame is None else entered or now
            if entered is not None and frame is not None:
                if now - entered > LIMIT_SECONDS + GRACE_SECONDS:
                    raise InvalidArgument(_not_stopped(frame))
                if now - entered > LIMIT_SECONDS and not self.stopped:
                    self.stopped = True
                    _raise_in(self._thread, _Stopped)
            self._thread.join(poll_seconds)

    def _call(self) -> None:
        try:
            self._result = self._function()
        except BaseException as error:  # noqa: BLE001 - `run` raises it
            self._error = error

    def _frame(self) -> FrameType | None:
        """The innermost call of the files' code; None if none runs."""
        frame = sys._current_frames().get(self._thread.ident or 0)
        while frame is not None and frame.f_code.co_filename not in self._files:
            frame = frame.f_back
        return frame


def _raise_in(thread: Thread, error: type[BaseException]) -> None:
    """Raise an exception of this class in a thread, before its next instruction of Python."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(error))


class _Settled(BaseException):
    """Raised in this thread, and caught."""


def _settle() -> None:
    """Take an exception in this thread, in case that the other one has not taken its own.

    Until some thread takes one, CPython 3.11 looks for it at each call, and calls a profiled function again and again.
    """
    try:
        _raise_in(current_thread(), _Settled)
        while True:  # the next instruction raises
            time.sleep(0)
    except _Settled:
        pass


def _not_stopped(frame: FrameType) -> str:
    code = frame.f_code
    name = getattr(code, "co_qualname", code.co_name)
    return (
        f"{name} did not return within {LIMIT_SECONDS:g} s, and cannot be stopped; the step was given up. It is at "
        f"line {frame.f_lineno} of {code.co_filename}, and goes on there until `logitport play` ends"
    )
