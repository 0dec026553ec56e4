"""What goes wrong inside a processor, as one of our errors."""

from __future__ import annotations

import traceback

from logitport.errors import LogitportError, ProcessorFailed

_LONGEST_TRACEBACK = 4096


def of_processor(error: BaseException, processor: str) -> LogitportError:
    """One of our own errors names the processor from now on; any other becomes `ProcessorFailed` with its traceback."""
    if isinstance(error, LogitportError):
        error.processor = error.processor or processor
        return error
    return ProcessorFailed(
        f"processor {processor} raised {type(error).__name__}: {error}",
        processor=processor,
        remote_traceback=remote_traceback(error),
    )


def remote_traceback(error: BaseException) -> str:
    """The frames below our own; the end of them, if they are very long."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_globals.get("__package__", "").startswith("logitport_server"):
        frames = frames.tb_next
    text = "".join(traceback.format_exception(type(error), error, frames))
    return text if len(text) <= _LONGEST_TRACEBACK else "[...]\n" + text[-_LONGEST_TRACEBACK:]
