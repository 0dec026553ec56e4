"""The event `ids_denied`: at the first row of an output that denies ids because of those before it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from logitport import Client, Request
from logitport.core.edits import RowEdits
from logitport_builtins import BadWords, NoRepeatNGram
from logitport_builtins.first_denial import FirstDenial

if TYPE_CHECKING:
    from collections.abc import Sequence

IDS = st.lists(st.integers(0, 3), max_size=12)
# Append ids without a row, append each with a row, or cut off so many.
MOVES = st.lists(
    st.tuples(st.sampled_from(["append", "step"]), IDS) | st.tuples(st.just("rewind"), st.integers(0, 8)), max_size=8
)
NGRAM = st.fixed_dictionaries(
    {"ngram_size": st.integers(1, 4)},
    optional={"window_size": st.integers(1, 15), "whitelist_token_ids": st.lists(st.integers(0, 3), max_size=3)},
)
# A word of one id is denied at each row, and is no event.
WORDS = st.lists(st.lists(st.integers(0, 3), min_size=2, max_size=4), max_size=4)
BAD_WORDS = st.fixed_dictionaries({"bad_words_ids": WORDS, "generated_only": st.booleans()})


def events(request: Any) -> list[str]:
    edits = RowEdits()
    request.processor.edit(request.request, edits)
    return [event.name for event in edits.events]


def check(follow: Any, processor: Any, params: dict[str, Any], prompt: Sequence[int], moves: Any) -> None:
    """Compare the events with the edits of new requests."""

    def first_denial(output: Sequence[int]) -> int | None:
        lengths = range(len(output) + 1)
        return next((one for one in lengths if follow(processor, params, prompt, output[:one]).edits()), None)

    def row() -> None:
        output = request.output
        assert events(request) == (["ids_denied"] if first_denial(output) == len(output) else [])

    request = follow(processor, params, prompt)
    for kind, argument in moves:
        if kind == "rewind":
            request.rewind(max(0, len(request.output) - argument))
        for token_id in argument if kind != "rewind" else ():
            request.append(token_id)
            if kind == "step":
                row()
        row()
    replayed = follow(processor, params, prompt, request.output)
    assert events(replayed) == events(request)


@given(NGRAM, IDS, MOVES)
def test_the_event_of_n_grams_follows_from_the_history(follow: Any, params: Any, prompt: Any, moves: Any) -> None:
    check(follow, NoRepeatNGram(), params, prompt, moves)


@given(BAD_WORDS, IDS, MOVES)
def test_the_event_of_bad_words_follows_from_the_history(follow: Any, params: Any, prompt: Any, moves: Any) -> None:
    check(follow, BadWords(), params, prompt, moves)


def test_a_word_of_one_id_is_no_event(follow: Any) -> None:
    request = follow(BadWords(), {"bad_words_ids": [[5], [1, 6]]}, [0])
    assert (request.edits(), events(request)) == ({"DENY": [5]}, [])
    assert events(request.append(1)) == ["ids_denied"]


def test_rows_that_were_computed_are_not_looked_up() -> None:
    first, looked_up = FirstDenial(), []

    def denying(begin: int) -> list[int]:
        looked_up.append(begin)
        return []

    assert not any(first.is_at(3, length, False, denying) for length in range(3, 9))
    assert first.is_at(3, 9, True, denying)
    assert not first.is_at(3, 10, True, denying)
    assert looked_up == []
    first.rewind(5)
    assert first.is_at(3, 7, True, denying)
    assert looked_up == [6]


def test_with_a_phase_each_block_has_an_event() -> None:
    tags = {"thinking_start_ids": [5], "thinking_end_ids": [6]}
    chain = [("no_repeat_ngram", {"ngram_size": 2, "phase": "thinking", "phase_tags": tags})]
    with Client.embedded() as client, client.session(vocab_size=40) as session:
        handle = session.add(Request([9], processors=chain))
        for token_id in (None, 5, 1, 2, 1, 1, 6, 1, 2, 1, 5, 3, 4, 3, 4):
            new = {handle: [] if token_id is None else [token_id]}
            session.step(new).apply(np.zeros((1, 40), np.float32))
        assert [(one.name, one.position) for one in handle.report.events] == [("ids_denied", 4), ("ids_denied", 10)]
