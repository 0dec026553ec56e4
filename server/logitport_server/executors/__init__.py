"""Executors: where processors run. One file an executor; `Executor` is their interface."""

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
