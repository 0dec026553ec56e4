"""The sandbox of shipped processors: its layers, and the two places where they are applied.

The server calls `launch`, which starts a preloaded parent inside the outer layer. The parent creates a `WorkerForker`
and forks workers, and applies the inner layers to each. `assessment` decides whether this machine contains workers.
"""

from logitport_sandbox.forker import SandboxedProcess, WorkerForker
from logitport_sandbox.launcher import launch
from logitport_sandbox.layers import LAYER_NAMES, LAYERS
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
