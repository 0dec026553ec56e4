"""A span, as the code of the server uses it; this one does nothing."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from typing_extensions import Self


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
        """Return a context in which the span is active, and which does not end it."""
        return _NOTHING

    def set(self, name: str, value: str | bool | int | float) -> None:
        """Set an attribute; see `tracing.span` for its name."""

    def fail(self, error: BaseException) -> None:
        """Record that what the span describes has failed. Only the error's code is recorded."""

    def end(self) -> None:
        """End the span. The second call does nothing."""


NO_SPAN = Span()
