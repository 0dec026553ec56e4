"""The tokens of a simulation, a tile for each step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logitport.testing.view.markup import Markup, join, tag
from logitport.testing.view.texts import level, percent, plain, token

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from logitport.testing.records import StepRecord

_MAX_PROMPT = 400


def tiles(
    prefix: str,
    prompt: Sequence[int],
    steps: Sequence[StepRecord],
    texts: Mapping[int, str],
    *,
    current: int = 0,
) -> Markup:
    """Radio buttons, of which one is checked: its step is shown.

    Args:
        prefix: of the names and ids of the elements.
        prompt: its ids.
        steps: the steps.
        texts: the texts of ids.
        current: the step to show.
    """
    label = "Tokens. The color is the probability mass that the chain moved."
    return tile_group(
        label, prompt, [_tile(prefix, step, texts, checked=step.index == current) for step in steps], texts
    )


def tile_group(label: str, prompt: Sequence[int], shown: Iterable[Markup], texts: Mapping[int, str]) -> Markup:
    """The prompt and its tiles.

    Args:
        label: what they are, for screen readers.
        prompt: its ids.
        shown: the tiles.
        texts: the texts of ids.
    """
    return tag("div", _prompt(prompt, texts), *shown, class_="lp-tokens", role="radiogroup", aria_label=label)


def tile(
    prefix: str, index: int, shown: Markup, notes: Sequence[str], classes: Sequence[str], *, checked: bool
) -> Markup:
    """A radio button.

    Args:
        prefix: of its name and id.
        index: its value.
        shown: its text.
        notes: what it means, for its title and for screen readers.
        classes: further classes.
        checked: whether it is chosen.
    """
    identity, title = f"{prefix}-s{index}", ", ".join(notes)
    radio = tag(
        "input",
        type="radio",
        name=f"{prefix}-step",
        id=identity,
        value=index,
        checked=checked,
        aria_label=title,
    )
    return join(radio, tag("label", shown, for_=identity, class_=" ".join(["lp-tile", *classes]), title=title))


def legend() -> Markup:
    """The scale of the colors."""
    cells = [tag("span", class_=f"lp-key lp-m{number}") for number in range(0, 11, 2)]
    return tag("p", "mass moved 0\N{NO-BREAK SPACE}% ", *cells, " 100\N{NO-BREAK SPACE}%", class_="lp-legend")


def _prompt(prompt: Sequence[int], texts: Mapping[int, str]) -> Markup | None:
    if not prompt:
        return None
    shown = "".join(texts[one] for one in prompt) if texts else " ".join(map(str, prompt))
    if len(shown) > _MAX_PROMPT:
        shown = "\N{HORIZONTAL ELLIPSIS}" + shown[-_MAX_PROMPT:]
    return tag("span", shown, class_="lp-prompt")


def _tile(prefix: str, step: StepRecord, texts: Mapping[int, str], *, checked: bool) -> Markup:
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
    return tile(prefix, step.index, shown, notes, classes, checked=checked)
