"""The SDK: base classes for authors of processors, and the client for engines that call the service.

Further names, by topic: `logitport.edits`, `logitport.session`, `logitport.tokenizers`, `logitport.admin`,
`logitport.ops` and `logitport.integrations`. Programs are in the package `logitport_programs`, recordings of sessions
in `logitport_recording`, and tests of processors in `logitport_testing`.
"""

from typing import TYPE_CHECKING

from logitport.errors import (
    AccessDenied,
    InvalidArgument,
    LimitExceeded,
    LogitportError,
    NameTaken,
    NotCapturable,
    NotFound,
    PayloadError,
    ProcessorFailed,
    ProcessorWarning,
    RequestsFailed,
    ServerUnavailable,
    SessionClosed,
    StateLost,
)
from logitport.system.lazy import names_of

if TYPE_CHECKING:
    from logitport.client.client import Client
    from logitport.core.edits import Edits, RowEdits
    from logitport.core.history import History
    from logitport.processors import CustomLogitProcessor, EditProcessor, EditRequest
    from logitport.servers.connection import Tls
    from logitport.shipping.request import ProcessorRef, Request
    from logitport_programs.authoring.declarations import Bool, Float, Int, TokenIds
    from logitport_programs.authoring.processor import TensorProcessor
    from logitport_programs.authoring.tensor_history import TensorHistory

__all__ = [
    "AccessDenied",
    "Bool",
    "Client",
    "CustomLogitProcessor",
    "EditProcessor",
    "EditRequest",
    "Edits",
    "Float",
    "History",
    "Int",
    "InvalidArgument",
    "LimitExceeded",
    "LogitportError",
    "NameTaken",
    "NotCapturable",
    "NotFound",
    "PayloadError",
    "ProcessorFailed",
    "ProcessorRef",
    "ProcessorWarning",
    "Request",
    "RequestsFailed",
    "RowEdits",
    "ServerUnavailable",
    "SessionClosed",
    "StateLost",
    "TensorHistory",
    "TensorProcessor",
    "Tls",
    "TokenIds",
]

# Imported at first use: gRPC, which workers do not need, and numpy, which the front door of a server does not need.
_get = names_of(
    __name__,
    {
        "logitport.client.client": "Client",
        "logitport.core.edits": "Edits RowEdits",
        "logitport.core.history": "History",
        "logitport.processors": "CustomLogitProcessor EditProcessor EditRequest",
        "logitport.servers.connection": "Tls",
        "logitport.shipping.request": "ProcessorRef Request",
        "logitport_programs.authoring.declarations": "Bool Float Int TokenIds",
        "logitport_programs.authoring.processor": "TensorProcessor",
        "logitport_programs.authoring.tensor_history": "TensorHistory",
    },
)


def __getattr__(name: str) -> object:
    if name == "__version__":
        from importlib.metadata import version  # takes 20 ms

        return version(__name__)
    return _get(name)
