"""Every exception that logitport raises, in the client and in the server, by what the caller can do.

    LogitportError                     a defect of the server, or of its reply: report it
    ├── InvalidArgument (ValueError)   a call, parameter, token id, tensor or file is wrong: correct it
    │   └── NotCapturable              a class cannot become a program: change the line (raised only by the client)
    ├── AccessDenied                   the caller is unknown, or lacks the scope: change the token
    ├── NotFound                       no such processor, or no such request in the session
    ├── NameTaken                      the name is bound to another digest, or by another principal: choose another name
    ├── PayloadError                   a class cannot be serialized, accepted or loaded: change the class, or the server
    ├── ProcessorFailed                a processor raised, returned something else than logits, or was too slow
    ├── StateLost                      lost state that cannot be rebuilt from the history: begin the request again
    ├── SessionClosed                  closed, or never opened: open another session
    ├── LimitExceeded                  a configured limit; the message names it
    ├── ServerUnavailable              no connection, a lost one, or no answer in time: try again later
    ├── NotInstalled (ImportError)     a package of an extra is missing: install it (raised only by the client)
    └── RequestsFailed                 some requests of a step failed; holds the error of each

Outside this module: `logitport_testing.LawBroken`, an AssertionError of `check`. `ProcessorWarning` is a warning.

An error is sent as `logitport.v1.Error`, with its `code`. The table at the end is the only place that maps codes to
exceptions and gRPC statuses.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from logitport_proto import common_pb2

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class LogitportError(Exception):
    """Base class of all exceptions that logitport raises. Itself, a defect of the server or of its reply.

    Attributes:
        code: the code on the wire, a value of `logitport.v1.ErrorCode`; a class with several names them. 0
            (`ERROR_CODE_UNSPECIFIED`) for a class that is never sent.
        processor: the processor concerned, as its request named it, or "".
        remote_traceback: the traceback inside the processor's own code, or "".
        output: the end of what the processor printed and logged in the call that failed, if it runs in a worker and the
            call served no other request; "" otherwise.

    The message and these texts may have control characters of the processor. `str` of the error escapes them.
    """

    INTERNAL = common_pb2.ERROR_CODE_INTERNAL
    NEED_SYNC = common_pb2.ERROR_CODE_NEED_SYNC  # the histories differ; the SDK sends its own again
    code: int = INTERNAL

    def __init__(
        self,
        message: str,
        *,
        code: int | None = None,
        processor: str = "",
        remote_traceback: str = "",
        output: str = "",
    ) -> None:
        super().__init__(message)
        self.message = message
        if code is not None:
            self.code = code
        self.processor = processor
        self.remote_traceback = remote_traceback
        self.output = output

    def __str__(self) -> str:
        parts = [self.message]
        if self.remote_traceback:
            parts.append(f"Remote traceback:\n{self.remote_traceback.rstrip()}")
        if self.output:
            parts.append(f"Output of the processor:\n{self.output.rstrip()}")
        return escaped("\n\n".join(parts))


class InvalidArgument(LogitportError, ValueError):
    """A call, message, parameter, token id, tensor, program or file that breaks the contract."""

    code = common_pb2.ERROR_CODE_INVALID_ARGUMENT


class NotCapturable(InvalidArgument):
    """A class that cannot become a program. Raised by the client; the message has the file and the line."""


class AccessDenied(LogitportError):
    """The server denies this caller access.

    `code` is NOT_AUTHENTICATED without a valid token or certificate, NOT_PERMITTED without the scope for the call.
    """

    NOT_AUTHENTICATED = common_pb2.ERROR_CODE_NOT_AUTHENTICATED
    NOT_PERMITTED = common_pb2.ERROR_CODE_NOT_PERMITTED
    code = NOT_PERMITTED


class NotFound(LogitportError):
    """No built-in, registered name or digest matches; or the session holds no request with this handle."""

    code = common_pb2.ERROR_CODE_NOT_FOUND


class NameTaken(LogitportError):
    """The name is bound to another digest, or by another principal."""

    code = common_pb2.ERROR_CODE_NAME_TAKEN


class PayloadError(LogitportError):
    """A processor could not be serialized, accepted or loaded.

    `code` is NOT_ALLOWED if the operator does not allow it, or no trusted key signed it; PYTHON_MISMATCH for code of
    another Python minor version; INVALID otherwise.
    """

    INVALID = common_pb2.ERROR_CODE_INVALID_PAYLOAD
    NOT_ALLOWED = common_pb2.ERROR_CODE_PAYLOAD_NOT_ALLOWED
    PYTHON_MISMATCH = common_pb2.ERROR_CODE_PYTHON_MISMATCH
    code = INVALID


class ProcessorFailed(LogitportError):
    """A processor raised, or did not return logits of its rows' shape.

    `code` is TIMED_OUT if it did not return within the server's time for a call; QUARANTINED if it failed or was slow
    too often, and is not called until an operator lifts its quarantine; FAILED otherwise.
    """

    FAILED = common_pb2.ERROR_CODE_PROCESSOR_FAILED
    TIMED_OUT = common_pb2.ERROR_CODE_PROCESSOR_TIMED_OUT
    QUARANTINED = common_pb2.ERROR_CODE_PROCESSOR_QUARANTINED
    code = FAILED


class StateLost(LogitportError):
    """The request's state is lost, and cannot be rebuilt from its history."""

    code = common_pb2.ERROR_CODE_STATE_LOST


class SessionClosed(LogitportError):
    """The session is closed, or was never opened."""

    code = common_pb2.ERROR_CODE_SESSION_CLOSED


class LimitExceeded(LogitportError):
    """A configured limit was reached; the message names it."""

    code = common_pb2.ERROR_CODE_LIMIT_EXCEEDED


class ServerUnavailable(LogitportError):
    """No connection to the server, or it was lost, or no reply arrived within the time allowed.

    Attributes:
        was_connected: whether there was a connection, which was then lost.
        timed_out: whether the reply did not arrive in time. A new attempt would wait as long again.
    """

    code = common_pb2.ERROR_CODE_UNSPECIFIED

    def __init__(self, message: str, *, was_connected: bool = False, timed_out: bool = False) -> None:
        super().__init__(message)
        self.was_connected = was_connected
        self.timed_out = timed_out


class NotInstalled(LogitportError, ImportError):
    """A package that an extra of logitport would have installed is missing. Raised by the client."""

    code = common_pb2.ERROR_CODE_UNSPECIFIED


class RequestsFailed(LogitportError):
    """Some requests of a step failed. The others were processed.

    Attributes:
        failures: the error of each failed request, by its handle (in a session) or its index (in `Client.apply`).
        result: the value that the call would have returned.
    """

    code = common_pb2.ERROR_CODE_UNSPECIFIED

    def __init__(self, failures: Mapping[Any, LogitportError], result: object) -> None:
        listed = "\n".join(f"  {key}: {type(error).__name__}: {error}" for key, error in failures.items())
        failed = (
            "1 request failed; the others, if any,"
            if len(failures) == 1
            else f"{len(failures)} requests failed; the others"
        )
        super().__init__(f"{failed} got their result:\n{listed}")
        self.failures = dict(failures)
        self.result = result


class ProcessorWarning(UserWarning):
    """A processor does something that its author can hardly intend.

    A line of its code has no effect or makes its results depend on more than the request, a method looks like a
    misspelled hook, or its edits have denied every id of a row. The message has the place.
    """


def warn_all_denied(rows: Sequence[int], stacklevel: int) -> None:
    """Warn of rows without an allowed id, if there are any; `stacklevel` as for `warnings.warn`, from the caller."""
    if rows:
        warnings.warn(
            f"all ids of rows {list(rows)} are denied, so any id that is sampled from them is arbitrary: end these "
            "requests, or change their processors; all_denied_rows of the result lists the rows, and check=False "
            "turns this warning off",
            ProcessorWarning,
            stacklevel=stacklevel + 1,
        )


# Code on the wire, its exception, and the name of the gRPC status when a whole call fails with it.
_TABLE: tuple[tuple[int, type[LogitportError], str], ...] = (
    (LogitportError.INTERNAL, LogitportError, "INTERNAL"),
    (LogitportError.NEED_SYNC, LogitportError, "ABORTED"),
    (InvalidArgument.code, InvalidArgument, "INVALID_ARGUMENT"),
    (AccessDenied.NOT_AUTHENTICATED, AccessDenied, "UNAUTHENTICATED"),
    (AccessDenied.NOT_PERMITTED, AccessDenied, "PERMISSION_DENIED"),
    (NotFound.code, NotFound, "NOT_FOUND"),
    (NameTaken.code, NameTaken, "ALREADY_EXISTS"),
    (PayloadError.INVALID, PayloadError, "INVALID_ARGUMENT"),
    (PayloadError.NOT_ALLOWED, PayloadError, "PERMISSION_DENIED"),
    (PayloadError.PYTHON_MISMATCH, PayloadError, "FAILED_PRECONDITION"),
    (ProcessorFailed.FAILED, ProcessorFailed, "ABORTED"),
    (ProcessorFailed.TIMED_OUT, ProcessorFailed, "ABORTED"),
    (ProcessorFailed.QUARANTINED, ProcessorFailed, "FAILED_PRECONDITION"),
    (StateLost.code, StateLost, "DATA_LOSS"),
    (SessionClosed.code, SessionClosed, "FAILED_PRECONDITION"),
    (LimitExceeded.code, LimitExceeded, "RESOURCE_EXHAUSTED"),
)
_CLASSES = {code: error for code, error, _ in _TABLE}
_STATUSES = {code: status for code, _, status in _TABLE}

# Key in a failed call's trailing metadata. Its value is the serialized `logitport.v1.Error`.
METADATA_KEY = "logitport-error-bin"
# Details of the status UNAVAILABLE of a server that opens no more sessions.
DRAINING = "the server is draining; open a session on another one"


def to_proto(error: LogitportError) -> common_pb2.Error:
    """Convert to a message. An error of a class that is never sent becomes INTERNAL."""
    return common_pb2.Error(
        code=error.code or LogitportError.INTERNAL,  # type: ignore[arg-type]
        message=error.message,
        processor=error.processor,
        remote_traceback=error.remote_traceback,
        output=error.output,
    )


def from_code(code: int, message: str, **attributes: str) -> LogitportError:
    """Make the exception of a code. An unknown code, from a newer server, becomes a plain LogitportError."""
    return _CLASSES.get(code, LogitportError)(message, code=code, **attributes)


def from_proto(error: common_pb2.Error) -> LogitportError:
    """Convert a message to an exception, as `from_code`."""
    texts = {"processor": error.processor, "remote_traceback": error.remote_traceback, "output": error.output}
    return from_code(error.code, error.message, **texts)


def status_name(error: LogitportError) -> str:
    """Name of the gRPC status of a call that fails with this error, such as "NOT_FOUND"."""
    return _STATUSES.get(error.code, "INTERNAL")


def escaped(text: str) -> str:
    r"""Return the text for a terminal: characters that cannot be printed, except \n and \t, as their escapes."""
    return "".join(
        character if character.isprintable() or character in "\n\t" else character.encode("unicode_escape").decode()
        for character in text
    )
