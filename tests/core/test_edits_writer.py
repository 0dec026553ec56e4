"""The edits that the compiled core writes are those of `Edits.pack`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from logitport.core import compiled
from logitport.core.edits import Edits, RowEdits
from logitport.core.history import History
from logitport.errors import InvalidArgument

if TYPE_CHECKING:
    from tests.core.implementations import Implementation

VOCAB_SIZE = 200  # a bitmask has 7 words
ID = st.integers(0, VOCAB_SIZE - 1)
# One row: ids to deny, or ids with values.
ROW = st.one_of(st.lists(ID, max_size=12), st.dictionaries(ID, st.floats(-100, 100, width=32), max_size=12))


def _state(row: list[int] | dict[int, float]) -> Any:
    ids = np.array(list(row), np.int32)
    if isinstance(row, dict):
        return compiled.core.BiasList(ids, np.array(list(row.values()), np.float32))
    return compiled.core.TokenList(ids)


def _row_edits(row: list[int] | dict[int, float]) -> RowEdits:
    edits = RowEdits()
    if isinstance(row, dict):
        edits.bias(list(row), list(row.values()))
    else:
        edits.deny(row)
    return edits


@pytest.mark.usefixtures("both")
@given(st.lists(ROW, max_size=8))
def test_columns_have_the_bits_of_the_python_version(rows: list[list[int] | dict[int, float]]) -> None:
    written = Edits(
        *compiled.core.edit_rows([_state(row) for row in rows], [History()] * len(rows), VOCAB_SIZE, uses_bitmasks=True)
    )
    packed = Edits.pack(enumerate(map(_row_edits, rows)), VOCAB_SIZE)
    assert written.to_columns() == packed.to_columns()
    written.check(len(rows), VOCAB_SIZE)


@pytest.mark.parametrize("wrong", [VOCAB_SIZE, -1])
def test_an_id_outside_the_vocabulary_is_refused(
    both: tuple[Implementation, Implementation],
    wrong: int,
) -> None:
    for state in (_state([3, wrong]), _state({3: 1.0, wrong: 1.0}), _state([3] * 9 + [wrong])):
        with pytest.raises(InvalidArgument, match=f"of token id {wrong}: ids must lie in"):
            state.edit(History(), VOCAB_SIZE)


def test_arguments_that_do_not_fit_are_refused(both: tuple[Implementation, Implementation]) -> None:
    core = compiled.core
    with pytest.raises(InvalidArgument, match="one history for each state"):
        core.edit_rows([_state([1])], [], VOCAB_SIZE)
    with pytest.raises(InvalidArgument, match="do not fit"):
        core.BiasList(np.array([1], np.int32), [])
    for vocab_size in (0, -1, 2**31):
        with pytest.raises(InvalidArgument, match="size of a vocabulary"):
            _state([1]).edit(History(), vocab_size)
