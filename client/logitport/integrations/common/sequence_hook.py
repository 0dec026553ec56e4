"""The base class of hooks that an engine calls step by step, without batching requests of its own."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, Any

from logitport.integrations.common.circuit_breaker import Breaker, is_session_error

if TYPE_CHECKING:
    from collections.abc import MutableMapping
    from types import TracebackType

    from typing_extensions import Self

    from logitport.client import Client


class SequenceHook:
    """Holds the open sequences of a hook, each with its own session, and counts the steps served.

    Args:
        client: the connection; not closed by this object.
        sequences: an empty mapping from the engine's keys to open sequences; each has a `close` method.

    Attributes:
        steps, rows_applied, seconds: as documented by the hook.
    """

    def __init__(self, client: Client, sequences: MutableMapping[Any, Any]) -> None:
        self.steps = 0
        self.rows_applied: Counter[str] = Counter()
        self.seconds = 0.0
        self._client = client
        self._breaker = Breaker()
        self._sequences = sequences

    def close(self) -> None:
        """End all open sequences; the next call starts a new one. The client stays open."""
        for key in list(self._sequences):
            self._end(key)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _end(self, key: object) -> None:
        sequence = self._sequences.pop(key, None)
        if sequence is not None:
            sequence.close()

    def _record_success(self, began: float) -> None:
        """Count a step that began at this `time.perf_counter`."""
        self._breaker.record_success()
        self.steps += 1
        self.seconds += time.perf_counter() - began

    def _record_failure(self, key: object, error: BaseException) -> None:
        """End the sequence after its step raised this error."""
        self._end(key)
        if is_session_error(error):
            self._breaker.record_failure(error, self._client.timeout)
