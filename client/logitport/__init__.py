"""The SDK: base classes for authors of processors, and clients for engines that call the service."""

import importlib
from typing import TYPE_CHECKING

from logitport.core.edits import EditKind, Edits, RowEdits
from logitport.core.history import History
from logitport.dialects import InDialect
from logitport.errors import (
    AccessError,
    AllDeniedWarning,
    DeadlineExceeded,
    DuplicateRequest,
    HookNameWarning,
    InternalError,
    InvalidArgument,
    InvalidLogits,
    InvalidName,
    InvalidParams,
    InvalidProgram,
    InvalidRecording,
    InvalidTokenId,
    LawBroken,
    LimitExceeded,
    LoadFailed,
    LogitportError,
    MalformedPayload,
    NameTaken,
    NeedSync,
    NotAuthenticated,
    NotCapturable,
    NotInstalled,
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
    SuspectCodeWarning,
    UnknownProcessor,
    UnknownRequest,
)
from logitport.output import ProcessorOutput
from logitport.processors import CustomLogitProcessor, EditProcessor, EditRequest
from logitport.request import ProcessorRef, Request
from logitport.session.frames import Handle
from logitport.session.pending_request import PendingRequest
from logitport.tokenizers import Tokenizer, operator_tokenizer, shipped_tokenizer

if TYPE_CHECKING:
    from logitport.calls import ApplyResult
    from logitport.client import Client
    from logitport.connection import Tls
    from logitport.programs.declarations import Bool, Float, Int, TokenIds
    from logitport.programs.processor import TensorProcessor
    from logitport.programs.tensor_history import TensorHistory
    from logitport.recording.options import RecordOptions
    from logitport.session.session import Session
    from logitport.session.step import PendingStep
    from logitport.session.step_result import StepResult

__all__ = [
    "AccessError",
    "AllDeniedWarning",
    "ApplyResult",
    "Bool",
    "Client",
    "CustomLogitProcessor",
    "DeadlineExceeded",
    "DuplicateRequest",
    "EditKind",
    "EditProcessor",
    "EditRequest",
    "Edits",
    "Float",
    "Handle",
    "History",
    "HookNameWarning",
    "InDialect",
    "Int",
    "InternalError",
    "InvalidArgument",
    "InvalidLogits",
    "InvalidName",
    "InvalidParams",
    "InvalidProgram",
    "InvalidRecording",
    "InvalidTokenId",
    "LawBroken",
    "LimitExceeded",
    "LoadFailed",
    "LogitportError",
    "MalformedPayload",
    "NameTaken",
    "NeedSync",
    "NotAuthenticated",
    "NotCapturable",
    "NotInstalled",
    "NotPermitted",
    "PayloadError",
    "PayloadNotAllowed",
    "PayloadNotPortable",
    "PendingRequest",
    "PendingStep",
    "ProcessorFailed",
    "ProcessorOutput",
    "ProcessorQuarantined",
    "ProcessorRef",
    "ProcessorTimedOut",
    "PythonMismatch",
    "RecordOptions",
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
    "SuspectCodeWarning",
    "TensorHistory",
    "TensorProcessor",
    "Tls",
    "TokenIds",
    "Tokenizer",
    "UnknownProcessor",
    "UnknownRequest",
    "operator_tokenizer",
    "shipped_tokenizer",
]

# Imported at first use: gRPC, which processors and their workers do not need, and programs, which few processors need.
_LAZY = {
    "ApplyResult": "logitport.calls",
    "Bool": "logitport.programs.declarations",
    "Client": "logitport.client",
    "Float": "logitport.programs.declarations",
    "Int": "logitport.programs.declarations",
    "PendingStep": "logitport.session.step",
    "RecordOptions": "logitport.recording.options",
    "Session": "logitport.session.session",
    "StepResult": "logitport.session.step_result",
    "TensorHistory": "logitport.programs.tensor_history",
    "TensorProcessor": "logitport.programs.processor",
    "Tls": "logitport.connection",
    "TokenIds": "logitport.programs.declarations",
}


def __getattr__(name: str) -> object:
    if name == "__version__":
        from importlib.metadata import version  # takes 20 ms

        return version(__name__)
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_LAZY[name]), name)
    return value
