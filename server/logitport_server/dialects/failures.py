"""What goes wrong inside a processor, as one of our errors."""

from __future__ import annotations

import logging
import traceback
from typing import TYPE_CHECKING

from logitport.errors import (
    InvalidArgument,
    InvalidTokenId,
    LimitExceeded,
    LoadFailed,
    LogitportError,
    MalformedPayload,
    NotPermitted,
    PayloadNotAllowed,
    ProcessorFailed,
    ProcessorQuarantined,
    ProcessorTimedOut,
    PythonMismatch,
    SignatureRefused,
    StateLost,
    UnknownProcessor,
)

if TYPE_CHECKING:
    from collections.abc import Container, Iterator
    from types import TracebackType

    from logitport_server.dialects import Dialect

logger = logging.getLogger(__name__)

_MAX_MESSAGE_BYTES = 1000
_MAX_TRACEBACK_LENGTH = 4000

# What is said of a file or a network that a processor has not found.
_SANDBOXED = (
    " (it runs in a sandbox without network and files: put what it needs into the class as a constant, or into a "
    "package beside the server; docs/security.md)"
)
_MAX_CHAIN_LENGTH = 8

_OUR_PACKAGES = ("logitport_server", "logitport_builtins", "logitport")

# What a processor, or looking for it, may say in our own words.
_OURS = (
    *(InvalidArgument, UnknownProcessor, PayloadNotAllowed, MalformedPayload, PythonMismatch, LoadFailed),
    *(ProcessorFailed, StateLost, NotPermitted, SignatureRefused, LimitExceeded),
)


# Of these, what the SDK says to a processor that uses it wrongly, as with an id that is none: it cannot say to whom.
_UNNAMED = (InvalidArgument, InvalidTokenId)


class WorkerLost(ProcessorFailed):
    """The call cost the processor's worker its process. Travels as ProcessorFailed."""


# What calling again would not mend, and would cost another worker, or as much time again.
NON_RETRYABLE = (WorkerLost, ProcessorTimedOut, ProcessorQuarantined)


def of_processor(error: BaseException, processor: str, *, shipped: bool = True) -> LogitportError:
    """An error of the kinds that are ours names the processor; any other becomes `ProcessorFailed`, with its traceback.

    The error that comes back can travel, whatever was raised. The traceback of what nobody has shipped is logged, and
    does not travel: who calls an installed processor need not see its code.
    """
    if isinstance(error, _OURS):
        kind = next(cls for cls in type(error).__mro__ if cls.__module__ == LogitportError.__module__)
        message = _text(getattr(error, "message", error))
        if kind in _UNNAMED and not message.startswith("processor "):
            message = f"processor {processor}: {message}"
        trace = _end(_text(getattr(error, "remote_traceback", ""))) or _where_it_was_caused(error)
    else:
        kind = ProcessorFailed
        message = f"processor {processor} raised {type(error).__name__}: {_text(error)}"
        trace = remote_traceback(error)
    if trace and not shipped:
        logger.info("%s\n%s", message, trace)
        trace = ""
    failure: LogitportError = kind(_start(message), processor=processor, remote_traceback=trace)
    return failure


def of_sandboxed(error: BaseException, processor: str) -> LogitportError:
    """As `of_processor`, in a worker: where the system has refused something, it may well be the sandbox that did."""
    failure = of_processor(error, processor)
    if _refused_by_the_system(error):
        failure.message += _SANDBOXED
    elif "No module named" in failure.message and "install" not in failure.message and _lacks_a_module(error):
        failure.message += "; install it on the server, beside logitport"
    return failure


def of_dialect(error: BaseException, dialect: Dialect) -> LogitportError:
    """What a dialect raised, as `of_processor`."""
    return of_processor(error, dialect.name, shipped=dialect.shipped)


def remote_traceback(error: BaseException) -> str:
    """The frames below the server's; the end of them, if they are very long."""
    return _formatted(error, _below(error.__traceback__, {"logitport_server"}))


def _refused_by_the_system(error: BaseException) -> bool:
    """Whether it is, or came of, an error with a number of the system's, but for one that says that time is up."""
    return any(
        isinstance(cause, OSError) and not isinstance(cause, TimeoutError) and cause.errno is not None
        for cause in _chain(error)
    )


def _lacks_a_module(error: BaseException) -> bool:
    """Whether it is, or came of, an import of what is not here."""
    return any(isinstance(cause, ModuleNotFoundError) for cause in _chain(error))


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """The error and what it came of."""
    for _ in range(_MAX_CHAIN_LENGTH):
        if error is None:
            break
        yield error
        error = error.__cause__ or error.__context__


def _where_it_was_caused(error: BaseException) -> str:
    """The frames from the first that is not of our code; "" if all are, for then nobody else's is to blame."""
    frames = _below(error.__traceback__, _OUR_PACKAGES)
    return "" if frames is None else _formatted(error, frames)


def _below(frames: TracebackType | None, packages: Container[str]) -> TracebackType | None:
    while frames is not None and (frames.tb_frame.f_globals.get("__package__") or "").partition(".")[0] in packages:
        frames = frames.tb_next
    return frames


def _formatted(error: BaseException, frames: TracebackType | None) -> str:
    return _end(_text("".join(map(_start, traceback.format_exception(type(error), error, frames)))))


def _start(text: str) -> str:
    return text if len(text) <= _MAX_MESSAGE_BYTES else text[:_MAX_MESSAGE_BYTES] + " [...]\n"


def _end(text: str) -> str:
    return text if len(text) <= _MAX_TRACEBACK_LENGTH else "[...]\n" + text[-_MAX_TRACEBACK_LENGTH:]


def _text(value: object) -> str:
    """Text that can travel."""
    try:
        return str(value).encode(errors="replace").decode()
    except BaseException as error:  # noqa: BLE001 - __str__ is somebody else's code, too
        return f"(its text cannot be had: {type(error).__name__})"
