"""Counts of the steps that the compiled core has computed, for metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# Upper bounds of the buckets, in seconds: from a fast logits-free step to a batch of logits sent inline.
STEP_BOUNDS = (5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 5e-2, 0.1, 0.25, 0.5, 1.0, 2.5)
# Fewer, because each processor has a series of each.
PROCESSOR_BOUNDS = (5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 0.1, 0.5, 2.5)


class TimeCounts(NamedTuple):
    """A histogram of seconds.

    Attributes:
        buckets: the number of times up to each bound, but above the one before it; the last are above all bounds.
        seconds: their sum.
    """

    buckets: Sequence[int]
    seconds: float


class StepCounts(NamedTuple):
    """Steps of one transport.

    Attributes:
        computed: the times to compute them.
        queued: the times that they have waited.
        received_bytes, sent_bytes: of frames and replies that Python has not seen.
    """

    computed: TimeCounts
    queued: TimeCounts
    received_bytes: int
    sent_bytes: int


class ProcessorCounts(NamedTuple):
    """Display name of a processor, the rows that it was applied to, and its times by step."""

    name: str
    rows: int
    times: TimeCounts


class CompiledCounts(NamedTuple):
    """Steps by transport, and processors."""

    steps: Mapping[str, StepCounts]
    processors: Sequence[ProcessorCounts]
