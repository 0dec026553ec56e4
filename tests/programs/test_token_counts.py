from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from logitport_programs.request_tokens import TokenCounts

IDS = st.lists(st.integers(-3, 9), max_size=30)


def counted(counts):
    ids, numbers = counts.arrays()
    assert len(set(ids.tolist())) == len(ids)
    return dict(zip(ids.tolist(), numbers.tolist(), strict=True))


@given(IDS, IDS, st.integers(0, 60))
def test_ids_are_counted_as_they_come_and_go(first, more, removed):
    counts = TokenCounts(np.array(first, np.int32))
    assert counted(counts) == Counter(first)
    present = [*first, *more]
    for token_id in more:
        counts.add(token_id)
    assert counted(counts) == Counter(present)
    for token_id in present[len(present) - min(removed, len(present)) :]:
        counts.remove(token_id)
    assert counted(counts) == Counter(present[: max(0, len(present) - removed)])


def test_many_distinct_ids():
    counts = TokenCounts(np.empty(0, np.int32))
    for token_id in range(1000):
        counts.add(token_id)
    assert counted(counts) == dict.fromkeys(range(1000), 1)
