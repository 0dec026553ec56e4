"""The SDK: base classes for authors of processors, and clients for engines that call the service."""

import importlib
from typing import TYPE_CHECKING

from logitport.core.edits import EditKind, Edits, RowEdits
from logitport.core.history import History
from logitport.dialects import InDialect
from logitport.errors import (
    AccessError,
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
    NotAuthenticated,
    NotPermitted,
    PayloadError,
    PayloadNotAllowed,
    PayloadNotPortable,
    ProcessorFailed,
    ProcessorQuarantined,
    ProcessorTimedOut,
    PythonMismatch,
    RegistryError,
    RequestsFailed,
    ServerUnavailable,
    SessionClosed,
    SessionError,
    SignatureRefused,
    StateLost,
    UnknownProcessor,
    UnknownRequest,
)
from logitport.processors import CustomLogitProcessor, EditProcessor, EditRequest
from logitport.request import ProcessorRef, Request
from logitport.session.frames import Handle
from logitport.session.pending_request import PendingRequest

if TYPE_CHECKING:
    from logitport.aio import AsyncClient
    from logitport.calls import ApplyResult
    from logitport.client import Client
    from logitport.connection import Tls
    from logitport.session.session import Session
    from logitport.session.step import PendingStep, StepResult

__all__ = [
    "AccessError",
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
    "InDialect",
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
    "NotAuthenticated",
    "NotPermitted",
    "PayloadError",
    "PayloadNotAllowed",
    "PayloadNotPortable",
    "PendingRequest",
    "PendingStep",
    "ProcessorFailed",
    "ProcessorQuarantined",
    "ProcessorRef",
    "ProcessorTimedOut",
    "PythonMismatch",
    "RegistryError",
    "Request",
    "RequestsFailed",
    "RowEdits",
    "ServerUnavailable",
    "Session",
    "SessionClosed",
    "SessionError",
    "SignatureRefused",
    "StateLost",
    "StepResult",
    "Tls",
    "UnknownProcessor",
    "UnknownRequest",
]

# Imported at first use, because these modules import gRPC, which processors and their workers do not need.
_LAZY = {
    "ApplyResult": "logitport.calls",
    "AsyncClient": "logitport.aio",
    "Client": "logitport.client",
    "PendingStep": "logitport.session.step",
    "Session": "logitport.session.session",
    "StepResult": "logitport.session.step",
    "Tls": "logitport.connection",
}


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_LAZY[name]), name)
    return value
