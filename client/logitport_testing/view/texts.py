"""Texts for ids and numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logitport_testing.view.markup import Markup, join, tag

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import numpy as np
    from numpy.typing import NDArray

COLORS = 8  # of processors, in view.css
_LEVELS = 10  # of the color of a tile
_MAX_TEXT = 40
_VISIBLE = {"\n": "\N{DOWNWARDS ARROW WITH CORNER LEFTWARDS}", "\t": "\N{RIGHTWARDS ARROW TO BAR}"}


def token(token_id: int, texts: Mapping[int, str]) -> Markup:
    """The text of an id with visible spaces; its number where it has no text."""
    text = texts.get(token_id)
    if text is None:
        return tag("span", str(token_id), class_="lp-number")
    if len(text) > _MAX_TEXT:
        text = text[:_MAX_TEXT] + "\N{HORIZONTAL ELLIPSIS}"
    parts = [
        tag("span", "\N{MIDDLE DOT}", class_="lp-space")
        if character == " "
        else tag("span", _VISIBLE[character], class_="lp-space")
        if character in _VISIBLE
        else character
        for character in text
    ]
    return join(*parts) if text else tag("span", "\N{EMPTY SET}", class_="lp-space")


def plain(token_id: int, texts: Mapping[int, str]) -> str:
    """The text of an id in quotes, for titles and screen readers."""
    text = texts.get(token_id)
    return f"id {token_id}" if text is None else f"\N{LEFT DOUBLE QUOTATION MARK}{text}\N{RIGHT DOUBLE QUOTATION MARK}"


def probability(value: float) -> str:
    """Two digits: .41, 1, <.01 or 0."""
    if value == 0:
        return "0"
    if value < 0.005:
        return "<.01"
    return "1" if value >= 0.995 else f"{value:.2f}"[1:]


def percent(value: float) -> str:
    """A share as percents, without decimals unless it is below 1 %."""
    share = 100 * value
    return f"{share:.1f} %" if 0 < share < 0.95 else f"{share:.0f} %"


def signed(value: float) -> str:
    """A number with its sign and three digits."""
    return f"{value:+.3g}".replace("-", "\N{MINUS SIGN}")


def span(values: NDArray[np.float32]) -> str:
    """The lowest and the highest of some numbers; one number if they look the same."""
    low, high = signed(float(values.min())), signed(float(values.max()))
    return low if low == high else f"{low} to {high}"


def level(moved: float) -> str:
    """The class of the color of a moved mass: from lp-m0 to lp-m10."""
    return f"lp-m{min(_LEVELS, max(1, round(_LEVELS * moved))) if moved > 5e-4 else 0}"


def color(place: int) -> str:
    """The class of the color of a processor."""
    return f"lp-c{place % COLORS + 1}"


def swatch(place: int) -> Markup:
    """The number of a processor in its color."""
    return tag("span", str(place + 1), class_=f"lp-swatch {color(place)}", aria_hidden="true")


def listed(ids: Iterable[int], texts: Mapping[int, str]) -> Markup:
    """The ids, with commas."""
    parts = [join(", " if place else "", tag("code", token(one, texts))) for place, one in enumerate(ids)]
    return join(*parts)
