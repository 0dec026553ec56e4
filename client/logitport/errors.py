"""Every exception that logitport raises, in the client and in the server.

    LogitportError
    ├── InvalidArgument (ValueError)   a call or message that breaks the contract
    │   ├── InvalidTokenId             an id outside the vocabulary
    │   ├── InvalidLogits              wrong width, dtype, row count or size; a gradient
    │   ├── InvalidParams              parameters that the processor cannot use
    │   ├── InvalidName                a name that is not namespace/name[:tag]
    │   ├── InvalidProgram             a program that the verifier refuses
    │   │   └── NotCapturable          a class that cannot become a program (raised only by the client)
    │   └── InvalidRecording           a file that is no recording, or is damaged (raised only by the client)
    ├── AccessError
    │   ├── NotAuthenticated           no token or certificate, or an unknown one
    │   └── NotPermitted               the caller is known, and lacks the scope
    ├── RegistryError
    │   ├── UnknownProcessor           no such built-in, name or digest
    │   └── NameTaken                  the name is bound to another digest, or by another principal
    ├── PayloadError
    │   ├── PayloadNotPortable         the class cannot be serialized (raised only by the client)
    │   ├── PayloadNotAllowed          the operator does not allow shipped processors
    │   ├── MalformedPayload           not JSON, no "callable", not hex of a pickle
    │   ├── SignatureRefused           unsigned, expired, tampered with, or signed by an unknown key
    │   ├── PythonMismatch             code of another Python minor version
    │   └── LoadFailed                 unpickling or creating the instance raised, or not a processor class
    ├── ProcessorFailed                a processor raised, or did not return logits of its rows' shape
    │   ├── ProcessorTimedOut          it did not return within the server's time for a call
    │   └── ProcessorQuarantined       it failed or was slow too often, and is not called until its quarantine is lifted
    ├── SessionError
    │   ├── UnknownRequest             the handle names no request of this session
    │   ├── DuplicateRequest           the slot is taken
    │   ├── NeedSync                   server and client disagree about a history (the SDK sends it again)
    │   ├── StateLost                  lost state that cannot be rebuilt from the history
    │   └── SessionClosed              closed, or never opened
    ├── LimitExceeded                  a configured limit; the message names it
    ├── ServerUnavailable              no connection, or it was lost
    ├── DeadlineExceeded               no answer in time
    ├── InternalError                  a defect of the server
    ├── NotInstalled (ImportError)     a package of an extra is missing (raised only by the client)
    ├── LawBroken (AssertionError)     a processor breaks a law of `logitport.testing` (raised only by the client)
    └── RequestsFailed                 some requests of a step failed; holds the error of each

The warnings are not in the tree: `AllDeniedWarning`, `HookNameWarning`, `SuspectCodeWarning`.

An error is sent as `logitport.v1.Error`. The table at the end is the only place that maps exceptions to codes and
gRPC statuses.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from logitport.output import escaped
from logitport_proto import common_pb2

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class LogitportError(Exception):
    """Base class of all exceptions that logitport raises.

    Attributes:
        processor: the processor concerned, as its request named it; "" if there is none.
        remote_traceback: the traceback inside the processor's own code; "" if there is none.
        output: the end of what the processor printed and logged in the call that failed, if it runs in a worker and the
            call served no other request; "" otherwise.

    The message and these texts may have control characters of the processor. `str` of the error escapes them.
    """

    def __init__(self, message: str, *, processor: str = "", remote_traceback: str = "", output: str = "") -> None:
        super().__init__(message)
        self.message = message
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
    """A call or message that breaks the contract."""


class InvalidTokenId(InvalidArgument):
    """A token id outside the vocabulary."""


class InvalidLogits(InvalidArgument):
    """Logits of the wrong width, dtype, row count or size, or that require gradients while grad mode is on."""


class InvalidParams(InvalidArgument):
    """Parameters that are not a JSON object, or that the processor cannot use."""


class InvalidName(InvalidArgument):
    """A registered name that is not of the form namespace/name[:tag]."""


class InvalidProgram(InvalidArgument):
    """A program that cannot be decoded, or that the verifier refuses."""


class NotCapturable(InvalidProgram):
    """A class that cannot become a program. Raised by the client; the message has the file and the line."""


class InvalidRecording(InvalidArgument):
    """A file that is no recording, is damaged, or has a format of a later version. Raised by the client."""


class AccessError(LogitportError):
    """The server denies this caller access."""


class NotAuthenticated(AccessError):
    """The caller sent no token or certificate, or an unknown one."""


class NotPermitted(AccessError):
    """The caller is authenticated, but lacks the scope for this call."""


class RegistryError(LogitportError):
    """A processor could not be looked up or bound to a name."""


class UnknownProcessor(RegistryError):
    """No built-in, registered name or digest matches."""


class NameTaken(RegistryError):
    """The name is bound to another digest, or by another principal."""


class PayloadError(LogitportError):
    """A shipped processor could not be made, accepted or loaded."""


class PayloadNotPortable(PayloadError):
    """The class cannot be serialized. Raised by the client, before anything is sent."""


class PayloadNotAllowed(PayloadError):
    """The operator does not allow shipped processors."""


class MalformedPayload(PayloadError):
    """Not JSON, without "callable", or not the hexadecimal digits of a pickle."""


class SignatureRefused(PayloadError):
    """The payload is unsigned, expired, tampered with, or signed by a key that the server does not trust."""


class PythonMismatch(PayloadError):
    """The payload carries code of another Python minor version."""


class LoadFailed(PayloadError):
    """Unpickling or creating the instance raised, or the payload is not a processor class."""


class ProcessorFailed(LogitportError):
    """A processor raised, or did not return logits of its rows' shape."""


class ProcessorTimedOut(ProcessorFailed):
    """A processor did not return within the server's time for a call; its worker was terminated."""


class ProcessorQuarantined(ProcessorFailed):
    """A processor failed or was slow too often, and is not called until an operator lifts its quarantine."""


class SessionError(LogitportError):
    """A session cannot do what the call requires."""


class UnknownRequest(SessionError):
    """The handle (slot and generation) names no request of this session."""


class DuplicateRequest(SessionError):
    """The slot or the handle is already in use."""


class NeedSync(SessionError):
    """Server and client disagree about a request's history."""


class StateLost(SessionError):
    """The request's state is lost, and cannot be rebuilt from its history."""


class SessionClosed(SessionError):
    """The session is closed, or was never opened."""


class LimitExceeded(LogitportError):
    """A configured limit was reached; the message names it."""


class ServerUnavailable(LogitportError):
    """No connection to the server, or it was lost.

    Attributes:
        was_connected: whether there was a connection, which was then lost.
    """

    was_connected = False

    @classmethod
    def after_connection(cls, message: str) -> ServerUnavailable:
        """Make the error for a connection that was lost."""
        error = cls(message)
        error.was_connected = True
        return error


class DeadlineExceeded(LogitportError):
    """No reply within the time allowed."""


class InternalError(LogitportError):
    """A defect of the server."""


class NotInstalled(LogitportError, ImportError):
    """A package that an extra of logitport would have installed is missing. Raised by the client."""


class LawBroken(LogitportError, AssertionError):
    """A processor breaks a law of `logitport.testing`. Raised by `logitport.testing.check`.

    Attributes:
        law: name of the law, one of `logitport.testing.LAWS`.
        example: the smallest example that was found, as a dict; empty if the law needs none.
    """

    def __init__(self, message: str, *, law: str = "", example: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.law = law
        self.example = dict(example or {})


class RequestsFailed(LogitportError):
    """Some requests of a step failed. The others were processed.

    Attributes:
        failures: the error of each failed request, by its handle (in a session) or its index (in `Client.apply`).
        result: the value that the call would have returned.
    """

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


class SuspectCodeWarning(UserWarning):
    """A line of a processor has no effect, or makes its results depend on more than the request.

    From `Client.register`, `logitport.testing.simulate` and `logitport.testing.check`. The message has the file, the
    line and its code.
    """


class AllDeniedWarning(UserWarning):
    """Edits have denied every id of a row of logits: whichever id is sampled from it, is arbitrary."""

    @classmethod
    def warn(cls, rows: Sequence[int], stacklevel: int) -> None:
        """Warn of these rows, if there are any; `stacklevel` as for `warnings.warn`, from the caller of this method."""
        if rows:
            warnings.warn(
                f"all ids of rows {list(rows)} are denied, so any id that is sampled from them is arbitrary: end these "
                "requests, or change their processors; all_denied_rows of the result lists the rows, and check=False "
                "turns this warning off",
                cls,
                stacklevel=stacklevel + 1,
            )


class HookNameWarning(UserWarning):
    """A method of an `EditProcessor` looks like a misspelled hook, and has no effect."""


# Exception, code on the wire, name of the gRPC status when a whole call fails with it.
_TABLE: tuple[tuple[type[LogitportError], common_pb2.ErrorCode, str], ...] = (
    (InternalError, common_pb2.ERROR_CODE_INTERNAL, "INTERNAL"),
    (InvalidArgument, common_pb2.ERROR_CODE_INVALID_ARGUMENT, "INVALID_ARGUMENT"),
    (InvalidTokenId, common_pb2.ERROR_CODE_INVALID_TOKEN_ID, "INVALID_ARGUMENT"),
    (InvalidLogits, common_pb2.ERROR_CODE_INVALID_LOGITS, "INVALID_ARGUMENT"),
    (InvalidParams, common_pb2.ERROR_CODE_INVALID_PARAMS, "INVALID_ARGUMENT"),
    (InvalidName, common_pb2.ERROR_CODE_INVALID_NAME, "INVALID_ARGUMENT"),
    (InvalidProgram, common_pb2.ERROR_CODE_INVALID_PROGRAM, "INVALID_ARGUMENT"),
    (UnknownProcessor, common_pb2.ERROR_CODE_UNKNOWN_PROCESSOR, "NOT_FOUND"),
    (NameTaken, common_pb2.ERROR_CODE_NAME_TAKEN, "ALREADY_EXISTS"),
    (PayloadNotAllowed, common_pb2.ERROR_CODE_PAYLOAD_NOT_ALLOWED, "PERMISSION_DENIED"),
    (MalformedPayload, common_pb2.ERROR_CODE_MALFORMED_PAYLOAD, "INVALID_ARGUMENT"),
    (PythonMismatch, common_pb2.ERROR_CODE_PYTHON_MISMATCH, "FAILED_PRECONDITION"),
    (LoadFailed, common_pb2.ERROR_CODE_LOAD_FAILED, "FAILED_PRECONDITION"),
    (ProcessorFailed, common_pb2.ERROR_CODE_PROCESSOR_FAILED, "ABORTED"),
    (UnknownRequest, common_pb2.ERROR_CODE_UNKNOWN_REQUEST, "NOT_FOUND"),
    (DuplicateRequest, common_pb2.ERROR_CODE_DUPLICATE_REQUEST, "ALREADY_EXISTS"),
    (NeedSync, common_pb2.ERROR_CODE_NEED_SYNC, "ABORTED"),
    (StateLost, common_pb2.ERROR_CODE_STATE_LOST, "DATA_LOSS"),
    (SessionClosed, common_pb2.ERROR_CODE_SESSION_CLOSED, "FAILED_PRECONDITION"),
    (LimitExceeded, common_pb2.ERROR_CODE_LIMIT_EXCEEDED, "RESOURCE_EXHAUSTED"),
    (NotAuthenticated, common_pb2.ERROR_CODE_NOT_AUTHENTICATED, "UNAUTHENTICATED"),
    (NotPermitted, common_pb2.ERROR_CODE_NOT_PERMITTED, "PERMISSION_DENIED"),
    (SignatureRefused, common_pb2.ERROR_CODE_SIGNATURE_REFUSED, "PERMISSION_DENIED"),
    (ProcessorTimedOut, common_pb2.ERROR_CODE_PROCESSOR_TIMED_OUT, "ABORTED"),
    (ProcessorQuarantined, common_pb2.ERROR_CODE_PROCESSOR_QUARANTINED, "FAILED_PRECONDITION"),
)

_BY_CLASS = {error: (code, status) for error, code, status in _TABLE}
_BY_CODE: dict[int, type[LogitportError]] = {code: error for error, code, _ in _TABLE}

# Key in a failed call's trailing metadata. Its value is the serialized `logitport.v1.Error`.
METADATA_KEY = "logitport-error-bin"


def to_proto(error: LogitportError) -> common_pb2.Error:
    """Convert to a message. A class without a code is sent as its nearest ancestor that has one."""
    code = next((_BY_CLASS[cls][0] for cls in type(error).__mro__ if cls in _BY_CLASS), common_pb2.ERROR_CODE_INTERNAL)
    return common_pb2.Error(
        code=code,
        message=error.message,
        processor=error.processor,
        remote_traceback=error.remote_traceback,
        output=error.output,
    )


def from_code(code: int, message: str) -> LogitportError:
    """Make the exception of a code. An unknown code becomes a plain LogitportError."""
    return _BY_CODE.get(code, LogitportError)(message)


def from_proto(error: common_pb2.Error) -> LogitportError:
    """Convert a message to an exception. An unknown code, from a newer server, becomes a plain LogitportError."""
    cls = _BY_CODE.get(error.code, LogitportError)
    return cls(error.message, processor=error.processor, remote_traceback=error.remote_traceback, output=error.output)


def status_name(error: LogitportError) -> str:
    """Name of the gRPC status of a call that fails with this error, such as "NOT_FOUND"."""
    return next((_BY_CLASS[cls][1] for cls in type(error).__mro__ if cls in _BY_CLASS), "INTERNAL")
