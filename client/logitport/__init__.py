"""The SDK: authors write processors with it, engines call the service with it."""

from logitport.aio import AsyncClient
from logitport.calls import ApplyResult
from logitport.client import Client
from logitport.edits import EditKind, Edits, RowEdits
from logitport.errors import (
    DeadlineExceeded,
    DuplicateRequest,
    InternalError,
    InvalidArgument,
    InvalidLogits,
    InvalidName,
    InvalidParams,
    InvalidTokenId,
    LimitExceeded,
    LoadFailed,
    LogitportError,
    MalformedPayload,
    NameTaken,
    NeedSync,
    PayloadError,
    PayloadNotAllowed,
    PayloadNotPortable,
    ProcessorFailed,
    PythonMismatch,
    RegistryError,
    RequestsFailed,
    ServerUnavailable,
    SessionClosed,
    SessionError,
    StateLost,
    UnknownProcessor,
    UnknownRequest,
)
from logitport.frames import Handle
from logitport.history import History
from logitport.pending import PendingStep, StepResult
from logitport.processors import CustomLogitProcessor, EditProcessor, EditRequest
from logitport.request import ProcessorRef, Request
from logitport.session import Session

__all__ = [
    "ApplyResult",
    "AsyncClient",
    "Client",
    "CustomLogitProcessor",
    "DeadlineExceeded",
    "DuplicateRequest",
    "EditKind",
    "EditProcessor",
    "EditRequest",
    "Edits",
    "Handle",
    "History",
    "InternalError",
    "InvalidArgument",
    "InvalidLogits",
    "InvalidName",
    "InvalidParams",
    "InvalidTokenId",
    "LimitExceeded",
    "LoadFailed",
    "LogitportError",
    "MalformedPayload",
    "NameTaken",
    "NeedSync",
    "PayloadError",
    "PayloadNotAllowed",
    "PayloadNotPortable",
    "PendingStep",
    "ProcessorFailed",
    "ProcessorRef",
    "PythonMismatch",
    "RegistryError",
    "Request",
    "RequestsFailed",
    "RowEdits",
    "ServerUnavailable",
    "Session",
    "SessionClosed",
    "SessionError",
    "StateLost",
    "StepResult",
    "UnknownProcessor",
    "UnknownRequest",
]
