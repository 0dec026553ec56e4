"""The seam: one layer of the sandbox."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from logitport_server.sandbox.plan import Limits, Plan


class Layer(ABC):
    """One wall. A layer that is not waived stands around every worker.

    Attributes:
        name: what `--without-layer` calls it.
        does: what it keeps a worker from, in one line.
    """

    name: str
    does: str

    @abstractmethod
    def missing(self) -> str | None:
        """Why this machine lacks the layer, and what it would need; None if it is there."""

    def wrap(self, command: list[str], plan: Plan) -> list[str]:
        """In the server: the command of the preloaded parent, with this wall around it."""
        del plan
        return command

    def split(self, plan: Plan) -> None:
        """In the process that is about to fork a worker: what the worker must be born into."""

    def apply(self, plan: Plan, limits: Limits) -> None:
        """In the worker, before it reads anything that a client sent. Raises OSError if the wall cannot be put up."""
