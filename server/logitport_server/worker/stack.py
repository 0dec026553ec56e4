"""Where a worker is stuck: it writes its stack when the server sends a signal, before the server kills it.

`faulthandler` writes in the signal's handler, also while C code runs that does not return to the interpreter.
"""

from __future__ import annotations

import faulthandler
import re
import signal
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import socket
    from collections.abc import Sequence

    from logitport.payload.source_lines import SourcePart

SIGNAL = signal.SIGUSR1

_MAX_FRAMES = 20
# Most recent call first, without the source lines. Names have no other characters: the process is not trusted.
_FRAME = re.compile(rb'^  File "([ -~]{1,300})", line (\d{1,9}) in ([ -~]{1,200})$', re.MULTILINE)
# Ends a stack: a frame of the worker's own loop, or the line after the 100 frames that are written.
_LOOP = rb'File "[^\n]*/logitport_server/worker/call_loop\.py", line \d+ in \w+'
_END = re.compile(rb"^  (?:" + _LOOP + rb"|\.\.\.)\n", re.MULTILINE)
_OURS = "/logitport_server/"


class StackFrame(NamedTuple):
    """A call: the file as in the code, without folders for shipped code, the line, and the function's name."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"line {self.line} of {self.file}, in {self.function}"


def write_when_signalled(connection: socket.socket) -> None:
    """Write the stack to the connection when `SIGNAL` arrives. The server reads no further reply after that."""
    faulthandler.register(SIGNAL, connection, all_threads=False)


def is_complete(data: bytes | bytearray) -> bool:
    """Whether this has all frames of a stack that are read."""
    return _END.search(data) is not None


def frames_in(data: bytes | bytearray) -> list[StackFrame]:
    """Read the frames of the processor, the innermost first; none if the stack is the worker's own."""
    frames: list[StackFrame] = []
    for file, line, function in _FRAME.findall(data):
        frame = StackFrame(file.decode(), int(line), function.decode())
        if _OURS in frame.file or len(frames) == _MAX_FRAMES:
            break
        frames.append(frame)
    return frames


def of_processor(frames: Sequence[StackFrame]) -> StackFrame:
    """The innermost of these frames in shipped code, whose file has no folder, or else the innermost of all."""
    return next((frame for frame in frames if "/" not in frame.file), frames[0])


def formatted(frames: Sequence[StackFrame], source: Sequence[SourcePart]) -> str:
    """Format frames as a traceback, with these source lines, or ""."""
    if not frames:
        return ""
    lines = ["Traceback of the place where it was stopped (most recent call last):"]
    for frame in reversed(frames):
        lines.append(f'  File "{frame.file}", line {frame.line}, in {frame.function}')
        lines += [f"    {text}" for part in source if (text := _line_of(part, frame))][:1]
    return "\n".join(lines) + "\n"


def _line_of(part: SourcePart, frame: StackFrame) -> str:
    index = frame.line - part.first_line
    if part.file != frame.file or index < 0:
        return ""
    lines = part.text.splitlines()
    return lines[index].strip() if index < len(lines) else ""
