"""Grouping of a step's rows by processor."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from logitport_session.requests.active_request import ChainEntry
from logitport_session.steps.grouping import Row, Rows, group_rows, longest_chain

DIALECTS: list[Any] = [SimpleNamespace(name=name) for name in "abc"]


@st.composite
def requests(draw: st.DrawFn) -> list[Any]:
    chains = draw(st.lists(st.lists(st.sampled_from(DIALECTS), max_size=4), min_size=1, max_size=6))
    failures = draw(st.lists(st.booleans(), min_size=len(chains), max_size=len(chains)))
    return [
        SimpleNamespace(
            chain=[ChainEntry(dialect, object()) for dialect in chain], failure="a reason" if failed else None
        )
        for chain, failed in zip(chains, failures, strict=True)
    ]


@st.composite
def batches(draw: st.DrawFn) -> list[Row]:
    """Rows in ascending order, with gaps. Their requests are in any order."""
    owners = draw(st.lists(st.sampled_from(draw(requests())), max_size=12))
    steps = draw(st.lists(st.integers(1, 3), min_size=len(owners), max_size=len(owners)))
    return [Row(sum(steps[: at + 1]), owner) for at, owner in enumerate(owners)]


@given(batches(), st.integers(0, 4))
def test_each_row_is_in_exactly_one_group_of_its_processor(rows: list[Row], place: int) -> None:
    groups = group_rows(Rows(rows), place)
    expected = {
        row.index: row.request.chain[place]
        for row in rows
        if place < len(row.request.chain) and row.request.failure is None
    }
    grouped = [
        (row.index, group.dialect, state)
        for group in groups
        for row, state in zip(group.rows, group.states, strict=True)
    ]
    assert sorted(index for index, _, _ in grouped) == sorted(expected)
    assert all(
        expected[index].dialect is dialect and expected[index].state is state for index, dialect, state in grouped
    )
    assert len({id(group.dialect) for group in groups}) == len(groups)


@given(batches(), st.integers(0, 4))
def test_groups_keep_the_order_of_rows(rows: list[Row], place: int) -> None:
    for group in group_rows(Rows(rows), place):
        indices = [row.index for row in group.rows]
        assert indices == sorted(set(indices))


@given(batches())
def test_every_position_of_a_chain_is_visited(rows: list[Row]) -> None:
    assert longest_chain(rows) == max((len(row.request.chain) for row in rows), default=0)
    assert group_rows(Rows(rows), longest_chain(rows)) == []


@given(batches())
def test_rows_cache_their_groups(rows: list[Row]) -> None:
    known = Rows(rows)
    assert known.groups == [group_rows(Rows(rows), place) for place in range(longest_chain(rows))]
    assert known.groups is known.groups
