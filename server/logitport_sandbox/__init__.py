"""The sandbox of shipped processors: its layers, and the two places where they are put around a worker.

The server calls `launch` (parent_launch.py), which starts a preloaded parent inside the outer layer. The parent creates
a `WorkerForker` (forker.py) and forks workers; each applies the inner layers to itself in `_enter_sandbox`, before it
reads client data. `verification` decides whether this machine contains workers.
"""

from logitport_sandbox.forker import SandboxedProcess, WorkerForker
from logitport_sandbox.layers import LAYER_NAMES, LAYERS
from logitport_sandbox.parent_launch import launch
from logitport_sandbox.plan import NotContained, SandboxError, WorkerLimits

__all__ = [
    "launch",
    "WorkerForker",
    "SandboxedProcess",
    "WorkerLimits",
    "LAYERS",
    "LAYER_NAMES",
    "SandboxError",
    "NotContained",
]
