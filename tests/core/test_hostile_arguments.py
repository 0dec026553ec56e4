"""Arguments that run code while the compiled core reads them, and states with histories that they do not follow.

A plain build may pass by luck: `make sanitize` reports each access to memory that was freed, or is another's.
"""

from __future__ import annotations

import random
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from logitport.core import compiled
from logitport.core.history import History
from logitport.errors import InvalidArgument, LogitportError

if TYPE_CHECKING:
    from collections.abc import Callable

core = compiled.core
pytestmark = pytest.mark.skipif(core is None, reason=f"the compiled core does not run: {compiled.REASON}")


class ClearsList:
    """An integer that empties the list that it is in."""

    def __init__(self, held: list[Any], value: int) -> None:
        self.held, self.value = held, value

    def __index__(self) -> int:
        self.held.clear()
        return self.value

    __int__ = __index__


def clearing(count: int = 50) -> list[Any]:
    held: list[Any] = []
    held.extend(ClearsList(held, 7) for _ in range(count))
    return held


@pytest.mark.parametrize(
    "read",
    [
        lambda ids: History().extend(ids),
        lambda ids: core.NGramIndex(History(), 2, 9, ids, 10),
        lambda ids: core.ThinkingBlocks(History(), 3, ids, [1], None),
        lambda ids: core.ThinkingBlocks(History(), 3, [1], ids, None),
        lambda ids: core.BannedSequences([ids], 0),
    ],
)
def test_a_list_may_change_while_it_is_read(read: Callable[[list[Any]], object]) -> None:
    read(clearing())


def test_a_nested_list_may_change_while_it_is_read() -> None:
    outer: list[Any] = []
    outer.extend([ClearsList(outer, 7)] for _ in range(50))
    (_, _, _, ids, _) = core.BannedSequences(outer, 0).edit(History(), 10)
    assert ids.tolist() == [7]


def test_numbers_of_another_type_are_refused() -> None:
    for wrong in ([1.5], ["1"], [2**31], [None], "12"):
        with pytest.raises(TypeError):
            History().extend(wrong)  # type: ignore[arg-type]


def test_the_requests_of_a_step_may_change_while_they_are_read() -> None:
    class Request:
        generation, history = 0, History()

        @property
        def slot(self) -> int:
            step.clear()
            return 0

    step: dict[Any, Any] = {}
    for _ in range(9):
        step[Request()] = [1]
    assert core.step_frame_writer(step, {0: None}, 10) is None


@pytest.mark.parametrize("place", [(1, "a", "b"), (None, "a", "b"), ("a", "b"), 5, (core and core.TokenList, "a", "b")])
def test_a_place_of_a_chain_must_be_whole(place: Any) -> None:
    batch = core.Batch(10, 1, 100, 100, 1000, [], [])
    with pytest.raises(InvalidArgument, match="a place of the chain"):
        batch.put(0, 0, History(), [place])
    state = core.TokenList(np.array([1], np.int32))
    with pytest.raises(InvalidArgument, match="a place of the chain"):
        batch.put(0, 0, History(), [(state, 5, "b")])
    with pytest.raises(UnicodeEncodeError):
        batch.put(0, 0, History(), [(state, "\udcff", "b")])


def test_thinking_blocks_of_another_history() -> None:
    blocks = core.ThinkingBlocks(History([1, 2, 3]), 3, [1], [2], None)
    with pytest.raises(LogitportError):
        blocks.advance(History(), 1)


@pytest.mark.parametrize("seed", range(10))
def test_states_with_histories_that_they_do_not_follow(seed: int) -> None:
    """A processor may also have changed the ids of a history, which it sees as an array."""
    draw = random.Random(seed)

    def ids(least: int, most: int) -> list[int]:
        return [draw.randrange(4) for _ in range(draw.randint(least, most))]

    histories = [History(ids(0, 40), ids(0, 150)) for _ in range(3)]
    kinds: list[Callable[[History], Any]] = [
        lambda history: core.NGramIndex(history, draw.randint(1, 4), draw.randrange(100), ids(0, 1), 4),
        lambda history: core.ThinkingBlocks(history, draw.randrange(4), ids(1, 3), ids(1, 3), draw.choice([None, 1])),
        lambda history: core.Penalty(history, 1.0, draw.random() < 0.5),
        lambda _: core.BannedSequences([ids(1, 3) for _ in range(5)], draw.randrange(30)),
    ]
    states = [kind(draw.choice(histories)) for kind in kinds]
    for _ in range(400):
        history, state = draw.choice(histories), draw.choice(states)
        changes: list[Callable[[], object]] = [
            lambda: history.extend(ids(0, 9)),  # noqa: B023 - called at once
            lambda: history.rewind(draw.randint(history.prompt_length, history.length)),  # noqa: B023
            lambda: history.token_ids.__setitem__(slice(draw.randint(0, 99), None, 7), draw.randint(-3, 5)),  # noqa: B023
            lambda: state.advance(history, draw.randrange(4)),  # noqa: B023
            lambda: state.rewind(history),  # noqa: B023
            lambda: state.edit(history, draw.choice([4, 3, 1])),  # noqa: B023
        ]
        with suppress(LogitportError):  # it may notice
            draw.choice(changes)()
