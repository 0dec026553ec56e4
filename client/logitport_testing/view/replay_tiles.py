"""The rows of a recorded request, with those of a new version."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from logitport_testing.replaying.row_difference import known_ids
from logitport_testing.runner import PlaceResult, ProcessorInfo
from logitport_testing.step_records.stages import Stage, record_place
from logitport_testing.step_records.step_record import Candidates, StepRecord
from logitport_testing.view.charts import differences
from logitport_testing.view.effects import effects, listed_ids, raised
from logitport_testing.view.markup import Markup, join, tag
from logitport_testing.view.panes import candidates_table, heading
from logitport_testing.view.texts import level, percent, plain, span, token
from logitport_testing.view.tiles import Tile, tiles

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from logitport_testing.replaying.compared_rows import ComparedRow
    from logitport_testing.replaying.row_difference import RowDifference
    from logitport_testing.step_records.step_record import ProcessorRecord

_VERSIONS = ("recorded version", "new version")
_TOP_K = 8
_DIFFERING = 4
_NO_LOGITS = "no logits were recorded in this step"


@dataclass(frozen=True)
class ShownRow:
    """A row, as it is shown.

    Attributes:
        title: its step, with the number of the recording.
        moved: the probability mass that the new version has elsewhere than the recorded one; None if the logits are not
            known.
        state: the words that describe it: whether it differs.
        differs: whether the new version has another effect.
        tile: the id that the engine chose after it.
        pane: the row in detail.
    """

    title: str
    moved: float | None
    state: str
    differs: bool
    tile: Tile
    pane: Markup


def show_row(row: ComparedRow, texts: Mapping[int, str]) -> ShownRow:
    """Describe a row, with the texts of ids."""
    offset = row.row.draft_offset
    title = f"step {row.step.index}" + (f" draft {offset}" if offset else "")
    state = "differs" if row.differs else "no difference" if row.compared else "not compared"
    stages = [Stage(one, _TOP_K) for one in (row.before, row.recorded, row.new) if one is not None]
    ids = _candidates(row, stages) if row.has_logits else np.empty(0, np.int32)
    moved, facts = None, [state]
    if row.has_logits and row.new is not None and row.recorded is not None:
        moved = stages[1].moved_to(stages[2])
        facts.append(f"moved {percent(moved)}")
        entropies = stages[1].summary.entropy, stages[2].summary.entropy
        facts.append(f"entropy {entropies[0]:.2f} \N{RIGHTWARDS ARROW} {entropies[1]:.2f} nats")
    elif not row.has_logits:
        facts.append(_NO_LOGITS)
    reads, best = not row.row.HasField("edits"), ids.tolist()
    records = tuple(
        record_place(place, ProcessorInfo(name, reads, False), stages[0], PlaceResult(stage.logits), stage)
        for place, (name, stage) in enumerate(zip(_VERSIONS, stages[1:], strict=False))
    )
    pane = join(
        heading(title.capitalize(), row.history[-1] if len(row.history) else None, facts, texts),
        _what(row, texts, best),
        tag("p", "The engine chose ", tag("code", token(row.chosen or 0, texts)), ", which the new version denies.")
        if row.chosen_denied
        else None,
        candidates_table(_step(row, stages, records, ids), texts, final=False) if row.has_logits else None,
        effects(records, texts, best, mass=row.has_logits),
    )
    return ShownRow(title, moved, state, row.differs, _tile(row, title, state, moved, texts), pane)


def replay_tiles(
    prefix: str, prompt: Sequence[int], rows: Sequence[ShownRow], texts: Mapping[int, str], current: int
) -> Markup:
    """The tiles of recorded rows; the other arguments are those of `tiles`."""
    label = "Recorded tokens. The color is the probability mass that the new version moves."
    return tiles(prefix, prompt, [row.tile for row in rows], texts, label=label, current=current)


def replay_charts(rows: Sequence[ShownRow]) -> Markup:
    """Draw the difference of the versions at each row."""
    titles = [f"{row.title}: {row.state}" if row.differs else "" for row in rows]
    return differences([row.moved for row in rows], titles)


def _tile(row: ComparedRow, title: str, state: str, moved: float | None, texts: Mapping[int, str]) -> Tile:
    chosen = "the chosen id is not known" if row.chosen is None else plain(row.chosen, texts)
    notes = [f"{title}: {chosen}", state]
    notes += [f"moved {percent(moved)}"] if moved is not None else []
    notes += ["the new version denies it"] if row.chosen_denied else []
    notes += ["the new version fails"] if row.error else []
    classes = [level(moved or 0.0)]
    classes += ["lp-differs"] if row.differs else []
    classes += ["lp-failed"] if row.error or row.chosen_denied else []
    classes += [] if row.compared else ["lp-unknown"]
    unknown = tag("span", "\N{HORIZONTAL ELLIPSIS}", class_="lp-space")
    return Tile(unknown if row.chosen is None else token(row.chosen, texts), notes, classes)


def _step(
    row: ComparedRow, stages: Sequence[Stage], records: tuple[ProcessorRecord, ...], ids: NDArray[np.int32]
) -> StepRecord:
    """Make a step of the candidates, for a table."""
    first, last = stages[0], stages[-1]
    columns = [stage.probabilities[ids] for stage in (*stages, last)]
    candidates = Candidates(ids, np.stack(columns, axis=1))
    return StepRecord(row.step.index, row.chosen, 0.0, first.summary, last.summary, records, 0.0, candidates)


def _candidates(row: ComparedRow, stages: Sequence[Stage]) -> NDArray[np.int32]:
    ids = known_ids(row.row)
    highest = np.max([stage.probabilities[ids] for stage in stages], axis=0)
    ordered = ids[np.argsort(-highest, kind="stable")]
    best = ordered[:_TOP_K].tolist()
    found = row.difference
    if found is not None:  # also ids that differ and are less probable
        differing = np.concatenate([found.denied, found.allowed, found.biased])
        best += ordered[_TOP_K:][np.isin(ordered[_TOP_K:], differing)][:_DIFFERING].tolist()
    if row.chosen is not None and row.chosen not in best:
        best.append(row.chosen)
    return np.array(best, np.int32)


def _what(row: ComparedRow, texts: Mapping[int, str], best: Sequence[int]) -> Markup:
    """The difference in words."""
    if row.not_run:
        return tag("p", f"Not compared: {row.not_run}.")
    if row.error:
        return tag("div", "The new version fails: ", raised(row.error))
    if row.differs and row.difference is None:
        return tag("p", "The recorded version has failed: ", tag("span", row.step.error, class_="lp-error"))
    if not row.compared:
        why = "the engine has not used the result" if row.step.unfinished else _NO_LOGITS
        return tag("p", f"Not compared: {why}.")
    if row.difference is None or not row.difference:
        return tag("p", "Both versions do the same.")
    return tag("p", "The new version ", _difference(row.difference, texts, best), ".", class_="lp-difference")


def _difference(found: RowDifference, texts: Mapping[int, str], best: Sequence[int]) -> Markup:
    parts = []
    if found.forced is not None and found.forced != found.was_forced:
        parts.append(join("leaves only ", tag("code", token(found.forced, texts))))
    elif found.was_forced is not None and found.forced is None:
        parts.append(join("leaves more than ", tag("code", token(found.was_forced, texts))))
    parts += listed_ids("denies", found.denied, 0, texts, best)
    parts += listed_ids("allows", found.allowed, 0, texts, best)
    if found.biased.size:
        parts += [join(*listed_ids("shifts", found.biased, 0, texts, best), f" by {span(found.bias)}")]
    return join(*(join("; " if place else "", part) for place, part in enumerate(parts)))
