"""Runs shipped processors in the process of their session, for operators that trust all authors."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING

from logitport.errors import PayloadError
from logitport.payload.pickle_reader import read
from logitport_server.executors.base import Executor
from logitport_server.executors.output_log import OutputLog
from logitport_server.registry.quarantine import Quarantine
from logitport_session import stubs
from logitport_session.dialects import Dialect, make_dialect

if TYPE_CHECKING:
    from logitport.payload import Payload
    from logitport_server.registry.loader import PayloadLoader
    from logitport_session.processor_sources.source import Source


class InlineExecutor(Executor):
    """Runs processors without isolation."""

    def __init__(self, loader: PayloadLoader) -> None:
        self.hits = self.misses = 0
        self._loader = loader
        self.quarantine = Quarantine(after=sys.maxsize, call_seconds=1.0)  # there are no workers to lose
        self.output = OutputLog()

    def load_shipped(self, source: Source) -> Dialect:
        assert source.payload is not None  # noqa: S101 - only payloads come here
        try:
            processor = self._loader.load(source.payload)
        except PayloadError as error:
            if error.code != PayloadError.INVALID:
                raise
            raise _with_advice(error, source.payload) from error
        finally:
            self.hits, self.misses = self._loader.hits, self._loader.misses
        return make_dialect(processor, source.display_name, shipped=True)


def _with_advice(error: PayloadError, shipped: Payload) -> PayloadError:
    """Add the fix to the error if the payload uses an engine that is missing here but stubbed in workers."""
    for reference in sorted(read(shipped.data).globals, key=lambda reference: (reference.module, reference.name)):
        engine = reference.module.partition(".")[0]
        if engine in stubs.ENGINES and find_spec(engine) is None:
            return PayloadError(
                f"the processor uses {reference.module}.{reference.name}, but {engine} is not installed on the server, "
                f"which runs shipped processors in its own process: install {engine} there, or serve with --isolation "
                f"process: its workers have stubs of {engine}"
            )
    return error
