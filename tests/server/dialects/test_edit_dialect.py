"""Edit processors with compiled states: the same results as from their own methods, which a subclass may override."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from logitport import EditRequest, History, RowEdits
from logitport.core import compiled
from logitport.edits import EditKind
from logitport.errors import InvalidArgument
from logitport.stateful import is_compiled
from logitport_builtins import DisallowedTokens, NoRepeatNGram
from logitport_builtins.constant_edits import TokenList
from logitport_builtins.sglang_names import Qwen3ThinkingBudgetLogitProcessor
from logitport_session.dialects.base import RequestContext, by_row
from logitport_session.dialects.edit_dialect import EditDialect

if TYPE_CHECKING:
    from collections.abc import Sequence

    from logitport import EditProcessor

VOCAB_SIZE = 100
NEEDS_CORE = pytest.mark.skipif(compiled.core is None, reason="compares with the compiled core")


class AlsoDeniesSeven(NoRepeatNGram):
    """Denies what the built-in denies, and also 7."""

    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        super().edit(request, edits)
        edits.deny([7])


class Counting(NoRepeatNGram):
    """Counts its calls in the parameters."""

    def advance(self, request: EditRequest, token_id: int) -> None:
        request.params["calls"].append(token_id)  # type: ignore[index]
        super().advance(request, token_id)

    @classmethod
    def rule(cls, params: Any) -> Any:
        return super().rule({"ngram_size": 2})


def started(
    processor: EditProcessor, params: dict[str, Any], ids: Sequence[int], vocab_size: int = VOCAB_SIZE
) -> tuple[EditDialect, EditRequest]:
    dialect = EditDialect(processor, "name", shipped=False)
    return dialect, dialect.start(RequestContext("request", History(ids), {}, vocab_size), params)


def edits_of(dialect: EditDialect, *states: EditRequest) -> list[list[tuple[EditKind, list[int]]]]:
    rows = by_row(dialect.edit(states), len(states))
    return [[(kind, ids.tolist()) for kind, ids, _ in row] for row in rows]


def append(dialect: EditDialect, state: EditRequest, token_id: int) -> None:
    state.history.append(token_id)
    callback = dialect.token_callback(state)
    assert callback is not None
    callback(token_id)


def test_the_rows_of_a_call() -> None:
    dialect, first = started(NoRepeatNGram(), {"ngram_size": 2}, [1, 2, 1])
    context = RequestContext("second", History([5, 6, 5, 8, 5]), {}, VOCAB_SIZE)
    second = dialect.start(context, {"ngram_size": 2})
    assert edits_of(dialect, first, second, first) == [
        [(EditKind.DENY, [2])],
        [(EditKind.DENY, [6, 8])],
        [(EditKind.DENY, [2])],
    ]
    append(dialect, first, 3)
    assert edits_of(dialect, first, second) == [[], [(EditKind.DENY, [6, 8])]]


def test_a_subclass_that_overrides_a_method_is_called() -> None:
    dialect, state = started(AlsoDeniesSeven(), {"ngram_size": 2}, [1, 2, 1])
    assert dialect.compiled_state(state) is None
    assert edits_of(dialect, state) == [[(EditKind.DENY, [2]), (EditKind.DENY, [7])]]
    calls: list[int] = []
    dialect, state = started(Counting(), {"calls": calls}, [1, 2])
    append(dialect, state, 1)
    assert calls == [1]
    assert edits_of(dialect, state) == [[(EditKind.DENY, [2])]]


class DeniesEightByObject(DisallowedTokens):
    """Overrides a method in the object."""

    def __init__(self) -> None:
        self.edit = lambda _, edits: edits.deny([8])  # type: ignore[method-assign]


class DeniesEightByLookup(DisallowedTokens):
    """Overrides a method where Python looks it up."""

    def __getattribute__(self, name: str) -> Any:
        return (lambda _, edits: edits.deny([8])) if name == "edit" else super().__getattribute__(name)


class EightAsState(TokenList):
    """Overrides a method of a state that may be compiled."""

    def edit(self, history: History, vocab_size: int, edits: RowEdits) -> None:  # type: ignore[override]
        edits.deny([8])


class DeniesEightByState(DisallowedTokens):
    def start(self, request: EditRequest) -> None:
        request.state = EightAsState(np.array([4], np.int32))


@pytest.mark.parametrize("kind", [DeniesEightByObject, DeniesEightByLookup, DeniesEightByState])
def test_each_other_way_to_override_a_method(kind: type[DisallowedTokens]) -> None:
    dialect, state = started(kind(), {"token_ids": [4]}, [1])
    assert dialect.compiled_state(state) is None
    assert edits_of(dialect, state) == [[(EditKind.DENY, [8])]]


@NEEDS_CORE
def test_states_of_built_ins_are_compiled_and_those_of_subclasses_that_override_nothing() -> None:
    dialect, state = started(NoRepeatNGram(), {"ngram_size": 2}, [1, 2, 1])
    assert dialect.compiled_state(state) is state.state
    assert is_compiled(state.state)
    assert is_compiled(type("Plain", (TokenList,), {})(np.array([4], np.int32)))


@NEEDS_CORE
def test_a_state_may_be_replaced_by_another_object() -> None:
    dialect, state = started(DisallowedTokens(), {"token_ids": [4]}, [1])
    state.state = None
    with pytest.raises(InvalidArgument, match="no compiled state"):
        dialect.edit([state])


def test_lists_are_not_turned_into_bitmasks() -> None:
    """Who reads the edits of a processor sees ids."""
    ids = [*range(20, 0, -1)]  # a bitmask has 4 words
    dialect, state = started(DisallowedTokens(), {"token_ids": ids}, [1])
    assert edits_of(dialect, state) == [[(EditKind.DENY, ids)]]


def test_a_rebuilt_state_gets_new_ids() -> None:
    dialect, state = started(NoRepeatNGram(), {"ngram_size": 2}, [1, 2])
    callback = dialect.token_callback(state)
    assert callback is not None
    state.history.append(1)  # without a call, as after an error
    dialect.rebuild(state)
    state.history.append(2)
    callback(2)
    append(dialect, state, 1)
    assert edits_of(dialect, state) == [[(EditKind.DENY, [2])]]
    state.history.rewind(2)
    dialect.rewind(state)
    assert edits_of(dialect, state) == [[]]


def test_ids_outside_the_vocabulary_stay_in_the_edits() -> None:
    """SGLang's classes do not check their ids; the end of the step does, and fails only this request."""
    processor = Qwen3ThinkingBudgetLogitProcessor()
    dialect, narrow = started(processor, {"thinking_budget": 0}, [151667], vocab_size=1000)
    assert edits_of(dialect, narrow) == [[(EditKind.FORCE, [198])]]
    assert dialect.compiled_state(narrow) is None
    wide = dialect.start(RequestContext("wide", History([151667]), {}, 200_000), {"thinking_budget": 0})
    assert edits_of(dialect, wide, narrow) == [[(EditKind.FORCE, [198])]] * 2
    narrow.history.append(198)
    dialect.rebuild(narrow)
    assert edits_of(dialect, narrow) == [[(EditKind.FORCE, [151668])]]
