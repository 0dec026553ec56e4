"""The walls around what clients ship: layers, and the two places where they are put up.

The server calls `launch`, which starts a preloaded parent behind the outer wall. That one makes a `Parent` and forks
workers, each behind walls of its own. `LAYERS` are the walls; `check` says whether this machine has them.
"""

from logitport_server.sandbox.forker import SandboxedProcess, WorkerForker
from logitport_server.sandbox.launcher import launch
from logitport_server.sandbox.layers import LAYER_NAMES, LAYERS
from logitport_server.sandbox.plan import Limits, NotContained, SandboxError

__all__ = [
    "launch",
    "WorkerForker",
    "SandboxedProcess",
    "Limits",
    "LAYERS",
    "LAYER_NAMES",
    "SandboxError",
    "NotContained",
]
