"""Where processors run: one file an executor, one seam (`Executor`)."""

from logitport_server.executors.base import Executor
from logitport_server.executors.inline import InlineExecutor

__all__ = ["Executor", "InlineExecutor"]
