"""What the logits of a row must become, computed with numpy alone and from the whole history at every step.

Shares no code with the product. `docs/processor-reference.md` and `docs/protocol.md` define the results.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tests.storm.reference_reading import READING, Row, Undecided

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Ids = NDArray[np.int32]
_F32 = np.finfo(np.float32)


@dataclass
class Context:
    """What edits are computed from.

    Attributes:
        ids: int32[length]; prompt, output, and the drafts that the row has seen.
        prompt: length of the prompt.
        vocab: width of the logits.
        eos: ids that end a sequence.
        drafts: number of drafts at the end of `ids`.
    """

    ids: Ids
    prompt: int
    vocab: int
    eos: Sequence[int] = ()
    drafts: int = 0

    @property
    def output(self) -> Ids:
        """The ids after the prompt."""
        return self.ids[self.prompt :]


@dataclass
class Edits:
    """The edits of consecutive processors, which are applied together.

    Attributes:
        forced: the only id that is allowed; None for all.
        denied: ids that become -inf.
        biases: pairs of ids and numbers, in the order of the processors.
    """

    forced: int | None = None
    denied: list[Any] = field(default_factory=list)
    biases: list[tuple[Any, Any]] = field(default_factory=list)

    def force(self, token_id: int) -> None:
        """Allow one id only; it is the first edit of its row, so that those of earlier processors have no effect."""
        self.forced, self.denied, self.biases = token_id, [], []

    def apply(self, row: Row) -> Row:
        """Return the edited row, by the rules of `docs/protocol.md`."""
        row = row.copy()
        if self.forced is not None:
            row[:] = -np.inf
            row[self.forced] = 0.0
        for ids in self.denied:
            row[np.asarray(ids, np.int64)] = -np.inf
        if self.biases:
            sums = np.zeros(len(row), np.float64)
            for ids, values in self.biases:
                np.add.at(sums, np.asarray(ids, np.int64), np.asarray(values, np.float32))
            row += np.clip(sums, _F32.min, _F32.max).astype(np.float32)
        return row


def _disallowed_tokens(context: Context, params: dict[str, Any], edits: Edits) -> None:
    edits.denied.append(params["token_ids"])


def _logit_bias(context: Context, params: dict[str, Any], edits: Edits) -> None:
    biases = {int(token_id): value for token_id, value in params["logit_bias"].items()}
    edits.biases.append((list(biases), list(biases.values())))


def _min_tokens(context: Context, params: dict[str, Any], edits: Edits) -> None:
    if len(context.output) < params["min_tokens"]:
        edits.denied.append([*params.get("stop_token_ids", ()), *context.eos])


def _bad_words(context: Context, params: dict[str, Any], edits: Edits) -> None:
    ids = context.output if params.get("generated_only") else context.ids
    for *begin, last in params["bad_words_ids"]:
        if len(begin) <= len(ids) and list(ids[len(ids) - len(begin) :]) == begin:
            edits.denied.append([last])


def _no_repeat_ngram(context: Context, params: dict[str, Any], edits: Edits) -> None:
    size = params["ngram_size"]
    ids = context.ids[-params["window_size"] :] if "window_size" in params else context.ids
    count = len(ids) - size + 1
    if count <= 0:
        return
    matches = np.ones(count, bool)
    for offset in range(size - 1):
        matches &= ids[offset : offset + count] == ids[len(ids) - size + 1 + offset]
    denied = set(ids[size - 1 :][matches].tolist()) - set(params.get("whitelist_token_ids", ()))
    edits.denied.append(sorted(denied))


def _presence_penalty(context: Context, params: dict[str, Any], edits: Edits) -> None:
    ids = np.unique(context.output)
    edits.biases.append((ids, np.full(len(ids), -np.float32(params["presence_penalty"]))))


def _frequency_penalty(context: Context, params: dict[str, Any], edits: Edits) -> None:
    ids, counts = np.unique(context.output, return_counts=True)
    edits.biases.append((ids, -np.float32(params["frequency_penalty"]) * counts.astype(np.float32)))


def _thinking_budget(context: Context, params: dict[str, Any], edits: Edits) -> None:
    """Tags of one id each: the last one decides, and a start tag within a block restarts its count."""
    (start,), (end,) = params["thinking_start_ids"], params["thinking_end_ids"]
    tags = np.flatnonzero((context.ids == start) | (context.ids == end))
    if not len(tags) or context.ids[tags[-1]] != start:
        return
    if len(context.ids) - tags[-1] - 1 >= params["thinking_budget"]:
        newline = params.get("newline_id")
        written = len(context.output) > 0 and context.output[-1] == newline
        edits.force(end if newline is None or written else newline)


def _loop_guard(context: Context, params: dict[str, Any], edits: Edits) -> None:
    """Of its actions, `deny_next` and `report`."""
    ids = context.output
    for period in range(1, min(params["max_period"], len(ids)) + 1):
        differing = np.flatnonzero(ids[:-period] != ids[period:])
        begin = int(differing[-1]) + 1 if len(differing) else 0
        few = len(np.unique(ids[-period:])) < 12
        blocks = max(params["repeats"], params["plain_repeats"] if few else 0)
        if len(ids) - begin >= max(blocks * period, params["min_length"]):
            if params["action"] == "deny_next":
                edits.denied.append([int(ids[-period])])
            return


def _most_frequent_rest(context: Context, params: dict[str, Any], edits: Edits) -> None:
    """Of `tests.storm.classes.Rest`."""
    most = int(np.argmax(np.bincount(context.ids % 3, minlength=3)))
    edits.denied.append(range(most, context.vocab, params["stride"]))
    edits.biases.append(([most], [2.0]))


def _deny_last(context: Context, params: dict[str, Any], edits: Edits) -> None:
    """Of `tests.storm.classes.DenyLast` and `Slow`."""
    if len(context.output):
        edits.denied.append([context.output[-1]])


EDITING: dict[str, Callable[[Context, dict[str, Any], Edits], None]] = {
    "disallowed_tokens": _disallowed_tokens,
    "logit_bias": _logit_bias,
    "loop_guard": _loop_guard,
    "min_tokens": _min_tokens,
    "bad_words": _bad_words,
    "no_repeat_ngram": _no_repeat_ngram,
    "presence_penalty": _presence_penalty,
    "frequency_penalty": _frequency_penalty,
    "thinking_budget": _thinking_budget,
    "Rest": _most_frequent_rest,
    "DenyLast": _deny_last,
    "Slow": _deny_last,
}


def expected(chain: Sequence[tuple[str, dict[str, Any]]], context: Context, row: Row, calls: int = 0) -> Row:
    """Return the processed row of a chain.

    Args:
        chain: names of built-ins, or of classes of `tests.storm.classes`, with their parameters.
        context: of this row.
        row: float32[vocab], which stays as it is.
        calls: how often the processors of the request were called, with this call.

    Raises:
        Undecided: rounding decides about an id.
    """
    for edit, entries in groupby(chain, key=lambda entry: entry[0] in EDITING):
        if not edit:
            for name, params in entries:
                row = READING[name](row, params, context.ids, calls)
            continue
        edits = Edits()
        for name, params in entries:
            EDITING[name](context, params, edits)
        row = edits.apply(row)
    return row


__all__ = ["EDITING", "READING", "Context", "Edits", "Undecided", "expected"]
