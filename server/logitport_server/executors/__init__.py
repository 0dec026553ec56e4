"""Executors: where processors run. One file an executor; `Executor` is their interface.

The names are imported at first use: the front door uses modules of this folder, and must not import torch.
"""

from typing import TYPE_CHECKING

from logitport.lazy import names_of

if TYPE_CHECKING:
    from logitport_server.executors.base import Executor
    from logitport_server.executors.flight import Flight
    from logitport_server.executors.gpu import Gpu
    from logitport_server.executors.inline import InlineExecutor
    from logitport_server.executors.process import ProcessExecutor
    from logitport_server.executors.worker import Deadlines

__all__ = [
    "Deadlines",
    "Executor",
    "Flight",
    "Gpu",
    "InlineExecutor",
    "ProcessExecutor",
]

__getattr__ = names_of(
    __name__,
    {
        "logitport_server.executors.base": "Executor",
        "logitport_server.executors.flight": "Flight",
        "logitport_server.executors.gpu": "Gpu",
        "logitport_server.executors.inline": "InlineExecutor",
        "logitport_server.executors.process": "ProcessExecutor",
        "logitport_server.executors.worker": "Deadlines",
    },
)
