"""Runs shipped processors in the server's own process, for an operator who trusts their authors."""

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

    def host_shipped(self, source: Source) -> Dialect:
        assert source.payload is not None  # noqa: S101 - a built-in is not shipped
        return speak(payload.instantiate(self._loader.load(source.payload)), source.key, shipped=True)
