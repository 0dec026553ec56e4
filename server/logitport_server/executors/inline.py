"""Runs shipped processors in the server's own process, for an operator who trusts their authors."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from logitport_server.dialects import Dialect, speak
from logitport_server.executors.base import Executor
from logitport_server.executors.quarantine import Quarantine

if TYPE_CHECKING:
    from logitport_server.loader import Loader
    from logitport_server.source import Source


class InlineExecutor(Executor):
    """No isolation at all."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader
        self.quarantine = Quarantine(after=sys.maxsize)  # nothing here can cost a worker

    @property
    def hits(self) -> int:  # type: ignore[override]
        return self._loader.hits

    @property
    def misses(self) -> int:  # type: ignore[override]
        return self._loader.misses

    def host_shipped(self, source: Source) -> Dialect:
        assert source.payload is not None  # noqa: S101 - a built-in is not shipped
        return speak(self._loader.load(source.payload), source.key, shipped=True)
