"""Samples the spans of steps that were partly drawn before."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opentelemetry import trace
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, Sampler, SamplingResult, TraceIdRatioBased

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opentelemetry.context import Context
    from opentelemetry.util.types import Attributes


class StepSampler(Sampler):
    """Records each step that was drawn, with its parts, if the operator's sampler records a part of the traces.

    The server draws the part before a step begins, because a step without spans takes a shorter way. The operator's
    sampler would drop most of the drawn steps again.

    Args:
        chosen: the operator's sampler, which decides about all other spans.
    """

    def __init__(self, chosen: Sampler) -> None:
        self._chosen = chosen
        self._root = getattr(chosen, "_root", chosen)
        self._draws = isinstance(self._root, TraceIdRatioBased)

    def should_sample(
        self,
        parent_context: Context | None,
        trace_id: int,
        name: str,
        kind: trace.SpanKind | None = None,
        attributes: Attributes = None,
        links: Sequence[trace.Link] | None = None,
        trace_state: trace.TraceState | None = None,
    ) -> SamplingResult:
        parent = trace.get_current_span(parent_context).get_span_context()
        is_part = parent.is_valid and not parent.is_remote and parent.trace_flags.sampled
        sampler = ALWAYS_ON if self._draws and (name == "step" or is_part) else self._chosen
        return sampler.should_sample(parent_context, trace_id, name, kind, attributes, links, trace_state)

    def get_description(self) -> str:
        return f"StepSampler({self._chosen.get_description()})"
