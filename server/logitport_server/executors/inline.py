"""Runs processors in the server's own process: built-ins, and shipped ones that the operator trusts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logitport import payload
from logitport_server.dialects import Dialect, speak
from logitport_server.executors.base import Executor

if TYPE_CHECKING:
    from logitport_server.loader import Loader
    from logitport_server.registry import Source


class InlineExecutor(Executor):
    """No isolation at all."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def host(self, source: Source) -> Dialect:
        if source.builtin is not None:
            return speak(source.builtin(), source.key, shipped=False)
        assert source.payload is not None  # noqa: S101 - a Source is one or the other
        return speak(payload.instantiate(self._loader.load(source.payload)), source.key, shipped=True)
