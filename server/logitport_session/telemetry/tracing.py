"""Spans of a session: what it records them with is chosen for the whole process, as for `logging`.

A span has the fields of `scope` as attributes. It never has token ids, parameters, or the message of an error, which
may quote both.
"""

from __future__ import annotations

import math
import random
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from contextlib import AbstractContextManager

    from typing_extensions import Self

Attributes: TypeAlias = "Mapping[str, str | bool | int | float]"

# More than a session makes.
_MAX_STEPS = 2**62
_HEADERS = ("traceparent", "tracestate")
_NOTHING = nullcontext()


class Span:
    """A span that is not recorded.

    In a `with` statement it is active: other spans that begin inside are its children. At the end of the statement it
    ends, with the error of an exception.
    """

    __slots__ = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, exc_type: object, exc: BaseException | None, traceback: object) -> None:
        """End the span."""

    @property
    def is_recorded(self) -> bool:
        """Whether the span is exported when it ends."""
        return False

    @property
    def context(self) -> object:
        """Its identity for other spans, as their parent or in a link; None if it is not recorded."""
        return None

    @property
    def ids(self) -> dict[str, str]:
        """Its `trace_id` and `span_id`, in hexadecimal; {} if it is not recorded."""
        return {}

    def active(self) -> AbstractContextManager[object]:
        """Return a context that keeps the span active, and does not end it."""
        return _NOTHING

    def set(self, name: str, value: str | bool | int | float) -> None:
        """Set an attribute; see `tracing.span` for its name."""

    def fail(self, error: BaseException) -> None:
        """Record that what the span describes has failed. Only the error's code is recorded."""

    def end(self) -> None:
        """End the span. The second call does nothing."""


NO_SPAN = Span()


class Tracer(Protocol):
    """Records spans."""

    def span(
        self,
        name: str,
        attributes: Attributes,
        parent: object,
        links: Iterable[object],
        *,
        is_call: bool,
        times: tuple[int, int] | None,
    ) -> Span:
        """Begin a span; see `span`."""

    def current(self) -> Span:
        """Return the span that is active in this thread or coroutine."""

    def continued(self, headers: Mapping[str, Any]) -> object:
        """Return the trace that these headers of W3C Trace Context name; None for no trace."""

    def headers(self) -> tuple[str, str]:
        """Return the headers of the active span; see `headers`."""


# None while traces are off, which is the default: then `span` returns one object that does nothing. The no-op spans of
# opentelemetry-api lost: a bare start_span and end take 0.65 µs, start_as_current_span with one attribute 5.8 µs.
_tracer: Tracer | None = None
# Part of the steps that have spans.
_steps = 0.0


def use(tracer: Tracer | None, steps: float = 0.0) -> None:
    """Record spans with this tracer, or, with None, record nothing.

    Args:
        tracer: the tracer.
        steps: part of the steps that are sampled.
    """
    global _tracer, _steps
    _tracer, _steps = tracer, steps if tracer is not None else 0.0


def span(
    name: str,
    attributes: Attributes | None = None,
    *,
    parent: object = None,
    links: Iterable[object] = (),
    is_call: bool = False,
    times: tuple[int, int] | None = None,
) -> Span:
    """Begin a span: use it in a `with` statement, or `end` it.

    Args:
        name: one of few names.
        attributes: in addition to the fields of `scope`, without their prefix "logitport."; a name with a dot is whole.
        parent: `Span.context` of the parent, or what `of_metadata` or `continued` has returned. By default the span
            that is active in this thread or coroutine; without one, a new trace begins.
        links: `Span.context` of other spans. None is left out.
        is_call: whether it is a call or frame that the server has received.
        times: its begin and end, in nanoseconds since the epoch, for a span of the past, which has ended.
    """
    if _tracer is None:
        return NO_SPAN
    return _tracer.span(name, attributes or {}, parent, links, is_call=is_call, times=times)


def is_on() -> bool:
    """Whether spans are recorded. If not, code that runs for every request need not collect attributes."""
    return _tracer is not None


def current() -> Span:
    """The span that is active in this thread or coroutine."""
    return NO_SPAN if _tracer is None else _tracer.current()


def unsampled_steps() -> int:
    """Draw the number of steps without spans before the next one that has spans.

    Drawn at once, and not a decision for each step: the compiled core then answers these steps alone.
    """
    if not 0.0 < _steps < 1.0:
        return 0 if _steps else _MAX_STEPS
    return int(min(math.log(1.0 - random.random()) / math.log1p(-_steps), _MAX_STEPS))  # noqa: S311 - no secret


def of_metadata(metadata: Iterable[tuple[str, Any]] | None) -> object:
    """Return the trace that a call's metadata names; None if they name none, or if there is no tracer."""
    if _tracer is None:
        return None
    return _tracer.continued({key: value for key, value in metadata or () if key in _HEADERS})


def continued(traceparent: str, tracestate: str) -> object:
    """Return the trace that these headers of W3C Trace Context name; None as `of_metadata`."""
    if _tracer is None or not traceparent:
        return None
    return _tracer.continued({"traceparent": traceparent, "tracestate": tracestate})


def headers() -> tuple[str, str]:
    """Return `traceparent` and `tracestate`, so that another process can continue the active span, or "".

    A span that is not recorded has them, too: its children in the other process are not recorded either.
    """
    return ("", "") if _tracer is None else _tracer.headers()


def ids(of: Span | None = None) -> dict[str, str]:
    """`trace_id` and `span_id`, in hexadecimal, of a span, by default the active one; {} if it is not recorded."""
    return (of or current()).ids
