"""The interface of one layer of the sandbox."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from logitport_sandbox.plan import SandboxPlan, WorkerLimits


class Layer(ABC):
    """One layer. Every worker has all layers that are present and not waived.

    Attributes:
        name: the name for `--layers`.
        does: its effect, in one line.
    """

    name: str
    does: str

    @abstractmethod
    def missing(self) -> str | None:
        """Return why this machine lacks the layer, and what it needs; None if the layer is present."""

    def wrap(self, command: list[str], plan: SandboxPlan) -> list[str]:
        """In the server: return the command of the preloaded parent, wrapped in this layer."""
        del plan
        return command

    def split(self, plan: SandboxPlan) -> None:
        """In the process that will fork a worker: enter what only a child process can be created in."""

    def apply(self, plan: SandboxPlan, limits: WorkerLimits) -> None:
        """In the worker, before it reads client data: apply the layer. Raises OSError if that fails."""
