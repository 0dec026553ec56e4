"""The tokens of a simulation, a tile for each step."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from logitport_testing.view.markup import Markup, join, tag
from logitport_testing.view.texts import level, percent, plain, token

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from logitport_testing.step_records.step_record import StepRecord

_MAX_PROMPT = 400


class Tile(NamedTuple):
    """The token of a step of a simulation, or of a recorded row.

    Attributes:
        shown: its text.
        notes: what it means, for its title and for screen readers.
        classes: further classes.
    """

    shown: Markup
    notes: Sequence[str]
    classes: Sequence[str]


def tiles(
    prefix: str,
    prompt: Sequence[int],
    shown: Sequence[Tile],
    texts: Mapping[int, str],
    *,
    label: str,
    current: int = 0,
) -> Markup:
    """Radio buttons. The step of the checked one is shown. Below them, the scale of the colors.

    The names and ids of the elements begin with the prefix. The label describes them for screen readers.
    """
    buttons = [_button(prefix, index, one, checked=index == current) for index, one in enumerate(shown)]
    group = tag("div", _prompt(prompt, texts), *buttons, class_="lp-tokens", role="radiogroup", aria_label=label)
    return join(group, _legend())


def step_tiles(
    prefix: str, prompt: Sequence[int], steps: Sequence[StepRecord], texts: Mapping[int, str], *, current: int = 0
) -> Markup:
    """The tiles of a simulation; the arguments are those of `tiles`."""
    label = "Tokens. The color is the probability mass that the chain moved."
    return tiles(prefix, prompt, [_tile(step, texts) for step in steps], texts, label=label, current=current)


def _button(prefix: str, index: int, tile: Tile, *, checked: bool) -> Markup:
    identity, title = f"{prefix}-s{index}", ", ".join(tile.notes)
    name = f"{prefix}-step"
    radio = tag("input", type="radio", name=name, id=identity, value=index, checked=checked, aria_label=title)
    classes = " ".join(["lp-tile", *tile.classes])
    return join(radio, tag("label", tile.shown, for_=identity, class_=classes, title=title))


def _legend() -> Markup:
    cells = [tag("span", class_=f"lp-key lp-m{number}") for number in range(0, 11, 2)]
    return tag("p", "mass moved 0\N{NO-BREAK SPACE}% ", *cells, " 100\N{NO-BREAK SPACE}%", class_="lp-legend")


def _prompt(prompt: Sequence[int], texts: Mapping[int, str]) -> Markup | None:
    if not prompt:
        return None
    shown = "".join(texts[one] for one in prompt) if texts else " ".join(map(str, prompt))
    if len(shown) > _MAX_PROMPT:
        shown = "\N{HORIZONTAL ELLIPSIS}" + shown[-_MAX_PROMPT:]
    return tag("span", shown, class_="lp-prompt")


def _tile(step: StepRecord, texts: Mapping[int, str]) -> Tile:
    nothing = step.token_id is None
    text = "no id is allowed" if step.token_id is None else plain(step.token_id, texts)
    failed = bool(step.error) or any(record.error for record in step.processors)
    notes = [f"step {step.index + 1}: {text}", f"moved {percent(step.moved)}"]
    notes += ["forced by hand"] if step.given else []
    notes += ["a processor failed"] if failed else []
    classes = [level(step.moved)]
    classes += ["lp-given"] if step.given else []
    classes += ["lp-failed"] if failed else []
    shown = tag("span", "\N{EMPTY SET}", class_="lp-space") if nothing else token(step.token_id or 0, texts)
    return Tile(shown, notes, classes)
