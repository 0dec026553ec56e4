"""HTML from Python: every text and every attribute is escaped."""

from __future__ import annotations

from html import escape
from typing import TypeAlias

_VOID = frozenset({"input", "br", "rect", "path", "line", "circle"})


class Markup(str):
    """HTML that needs no escaping."""

    __slots__ = ()


# None and False leave an attribute or a child out.
Child: TypeAlias = Markup | str | None
Attribute: TypeAlias = str | int | float | bool | None


def tag(name: str, /, *children: Child, **attributes: Attribute) -> Markup:
    """Make an element.

    Args:
        name: its name.
        children: text, which is escaped, and other elements.
        attributes: `_` is `-` in their names, and a trailing one is dropped (`class_`). True is an empty attribute.
    """
    written = "".join(
        f" {key.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{escape(_text(value))}"')
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    if name in _VOID and not children:
        return Markup(f"<{name}{written} />")
    return Markup(f"<{name}{written}>{join(*children)}</{name}>")


def join(*children: Child) -> Markup:
    """Join elements and texts."""
    return Markup("".join(child if isinstance(child, Markup) else escape(child) for child in children if child))


def _text(value: Attribute) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
