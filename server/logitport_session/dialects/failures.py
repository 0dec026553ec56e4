"""Converts exceptions that a processor raises to logitport's errors."""

from __future__ import annotations

import logging
import re
import traceback
from importlib.util import find_spec
from typing import TYPE_CHECKING

from logitport.errors import (
    AccessDenied,
    InvalidArgument,
    LimitExceeded,
    LogitportError,
    NotFound,
    PayloadError,
    ProcessorFailed,
    StateLost,
    from_code,
)
from logitport.system.installation import OUR_PACKAGES
from logitport_session import stubs
from logitport_session.resources import descriptors

if TYPE_CHECKING:
    from collections.abc import Container, Iterator
    from types import TracebackType

    from logitport_session.dialects import Dialect

logger = logging.getLogger(__name__)

_MAX_MESSAGE_BYTES = 1000
_MAX_TRACEBACK_LENGTH = 4000
_MAX_OUTPUT_LENGTH = 2000

# Appended to the message when a system call failed inside the sandbox.
_SANDBOXED = (
    " (it runs in a sandbox without network and files: put what it needs into the class as a constant, or into a "
    "package installed with the server; see docs/security.md)"
)
_MAX_CHAIN_LENGTH = 8
_RUST_OS_ERROR = re.compile(r"\(os error \d+\)")

_SERVICE = ("logitport_server", "logitport_session")

# Errors that pass through with their own type.
_OURS = (InvalidArgument, NotFound, PayloadError, ProcessorFailed, StateLost, AccessDenied, LimitExceeded)


class WorkerLost(ProcessorFailed):
    """The worker process ended during the call. Sent to clients as ProcessorFailed."""


class ReplyTooLarge(LimitExceeded):
    """The edits of one call do not fit into a reply; fewer rows may fit. Sent to clients as LimitExceeded."""


def is_retryable(error: BaseException) -> bool:
    """Return whether a call of fewer rows may succeed; if not, it loses another worker or takes as long again."""
    codes = (ProcessorFailed.TIMED_OUT, ProcessorFailed.QUARANTINED)
    return not (isinstance(error, WorkerLost) or (isinstance(error, ProcessorFailed) and error.code in codes))


def of_processor(error: BaseException, processor: str, *, shipped: bool = True) -> LogitportError:
    """Convert an exception to a logitport error that names the processor and can be serialized.

    logitport's own errors keep their type. Any other exception becomes `ProcessorFailed`, with its traceback. For a
    processor that was not shipped, the traceback is logged and not returned: clients need not see installed code.
    If this process has no free descriptor, that is `LimitExceeded` of the server, and not a failure of the processor.
    """
    if descriptors.is_shortage(error):
        return LimitExceeded(descriptors.shortage().message, processor=processor)
    return _of_code(error, processor, shipped=shipped)


def _of_code(error: BaseException, processor: str, *, shipped: bool) -> LogitportError:
    if isinstance(error, _OURS):
        kind = next(cls for cls in type(error).__mro__ if cls.__module__ == LogitportError.__module__)
        message = _text(getattr(error, "message", error))
        if kind is InvalidArgument and not message.startswith(("processor ", f"{processor}: ")):
            message = f"processor {processor}: {message}"
        trace = _end(_text(getattr(error, "remote_traceback", ""))) or _third_party_traceback(error)
    else:
        kind = ProcessorFailed
        message = f"processor {processor} raised {type(error).__name__}: {_text(error)}{_missing_engine(error)}"
        trace = remote_traceback(error)
    if trace and not shipped:
        logger.info("%s\n%s", message, trace)
        trace = ""
    output = _text(getattr(error, "output", "")) if shipped and isinstance(error, _OURS) else ""
    code = _code_of(error, kind)
    failure: LogitportError = kind(
        _start(message), code=code, processor=processor, remote_traceback=trace, output=output[-_MAX_OUTPUT_LENGTH:]
    )
    return failure


def _code_of(error: BaseException, kind: type[LogitportError]) -> int:
    """Return the error's code if its class has it. The processor's code may have set anything."""
    code = error.code if isinstance(error, LogitportError) else None
    is_known = isinstance(code, int) and type(from_code(code, "")) is kind
    # Not a request for another token: that concerns the engine's call, and no processor.
    return code if is_known and code != AccessDenied.NOT_AUTHENTICATED else kind.code  # type: ignore[return-value]


def of_sandboxed(error: BaseException, processor: str) -> LogitportError:
    """Convert like `of_processor`, in a worker; a failed system call gets a hint that the sandbox may be the cause."""
    failure = _of_code(error, processor, shipped=True)
    lacks_module = any(isinstance(cause, ModuleNotFoundError) for cause in chain(error))
    if _refused_by_the_system(error):
        failure.message += _SANDBOXED
    elif lacks_module and "No module named" in failure.message and "install" not in failure.message:
        failure.message += "; install it on the server, in logitport's environment"
    return failure


def of_dialect(error: BaseException, dialect: Dialect) -> LogitportError:
    """Convert an exception of a dialect, as `of_processor` does for one of a processor."""
    return of_processor(error, dialect.name, shipped=dialect.shipped)


def remote_traceback(error: BaseException) -> str:
    """Format the traceback below the server's frames; only its end, if it is very long."""
    return _formatted(error, _below(error.__traceback__, _SERVICE))


def _refused_by_the_system(error: BaseException) -> bool:
    """Whether the error is, or was caused by, a failed system call other than a timeout.

    That is an OSError with an errno, or an error of a module in Rust, such as tokenizers.
    """
    return any(
        (isinstance(cause, OSError) and not isinstance(cause, TimeoutError) and cause.errno is not None)
        or _RUST_OS_ERROR.search(_text(cause)) is not None
        for cause in chain(error)
    )


def _missing_engine(error: BaseException) -> str:
    """Return advice if the error is the import of an engine that has stubs in other processes."""
    engine = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    if engine not in stubs.ENGINES or find_spec(engine) is not None:
        return ""
    return (
        f"; install {engine} here, or use `logitport play`, `logitport replay` or the workers of a server, which have "
        f"stubs of {engine}"
    )


def chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield the error and its causes, 8 at most."""
    for _ in range(_MAX_CHAIN_LENGTH):
        if error is None:
            break
        yield error
        error = error.__cause__ or error.__context__


def _third_party_traceback(error: BaseException) -> str:
    """Format the traceback from the first third-party frame on; "" if every frame is logitport's own."""
    frames = _below(error.__traceback__, OUR_PACKAGES)
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
    """Convert to text that can be encoded as UTF-8."""
    try:
        return str(value).encode(errors="replace").decode()
    except BaseException as error:  # noqa: BLE001 - __str__ is third-party code, too
        return f"(converting it to text raised {type(error).__name__})"
