"""Context of the running thread or coroutine: fields for its log records and spans."""

from __future__ import annotations

from contextvars import ContextVar
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextvars import Token

_current: ContextVar[Mapping[str, str]] = ContextVar("scope", default=MappingProxyType({}))


class Scope:
    """A context manager that gives log records of events, and spans, these fields. Not reentrant.

    Args:
        fields: such as `session`, `principal`, `engine` and `request_id`, in addition to those outside.
    """

    __slots__ = ("_fields", "_token")

    def __init__(self, fields: Mapping[str, str]) -> None:
        self._fields = fields

    def __enter__(self) -> None:
        outside = _current.get()
        self._token: Token[Mapping[str, str]] = _current.set({**outside, **self._fields} if outside else self._fields)

    def __exit__(self, *_: object) -> None:
        _current.reset(self._token)


def fields() -> Mapping[str, str]:
    """The fields of the present scopes."""
    return _current.get()
