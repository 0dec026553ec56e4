"""Ids of a request, counted incrementally."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st

from logitport.core.history import History
from logitport_programs.request_tokens import RequestTokens
from tests.tiers import examples

if TYPE_CHECKING:
    import numpy as np

IDS = st.lists(st.integers(0, 12), max_size=30)


def counted(request: RequestTokens, *, generated: bool) -> dict[int, int]:
    ids, counts = request.counted(generated=generated)
    assert len(set(ids.tolist())) == len(ids)
    return dict(zip(ids.tolist(), counts.tolist(), strict=True))


def counts_of(ids: np.ndarray) -> dict[int, int]:
    return {int(each): int((ids == each).sum()) for each in ids}


@settings(max_examples=examples(50), deadline=None)
@given(IDS, IDS, st.lists(IDS | st.integers(0, 40), max_size=6), st.booleans())
def test_counts_are_those_of_the_history(
    prompt: list[int], output: list[int], edits: list[list[int] | int], reads_each_time: bool
) -> None:
    history = History(prompt, output)
    request = RequestTokens(history)
    for edit in edits:
        if reads_each_time:
            for generated in (False, True):
                counted(request, generated=generated)  # counted incrementally from here on
        if isinstance(edit, int):
            history.rewind(max(len(prompt), len(history) - edit))
            request.rewound()
        else:
            history.extend(edit)
    assert counted(request, generated=False) == counts_of(history.token_ids)
    assert counted(request, generated=True) == counts_of(history.output_token_ids)


def test_many_distinct_ids_grow_the_arrays() -> None:
    request = RequestTokens(History())
    request.counted(generated=True)
    request.history.extend(range(500))
    assert counted(request, generated=True) == dict.fromkeys(range(500), 1)
