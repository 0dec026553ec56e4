"""The compiled core checks and writes edits as the Python version does, with the same errors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from logitport.core import compiled
from logitport.core.edits import EditKind, Edits, RowEdits
from logitport.core.history import History
from logitport.errors import InvalidArgument, LogitportError
from tests.core.edits_strategies import CHANGED_ELEMENT, CHANGED_LENGTH, batches, change

if TYPE_CHECKING:
    from tests.core.implementations import Implementation


Both = tuple["Implementation", "Implementation"]


def _outcome(check: Any, edits: Edits, num_rows: int, width: int) -> str:
    try:
        check(edits, num_rows, width)
    except LogitportError as error:
        return repr(error)
    return ""


def _proven(edits: Edits, num_rows: int, width: int) -> bool:
    columns = edits.rows, edits.kinds, edits.offsets, edits.ids, edits.values
    proven: bool = compiled.core.edits_proven(*columns, num_rows, width)
    return proven


def _is_ascending(edits: Edits) -> bool:
    return bool((edits.rows[:-1] <= edits.rows[1:]).all())


@given(batch=batches())
def test_valid_edits_are_accepted(both: Both, batch: tuple[Edits, int, int]) -> None:
    edits, num_rows, width = batch
    assert [_outcome(one.check_edits, edits, num_rows, width) for one in both] == ["", ""]
    assert _proven(edits, num_rows, width) == _is_ascending(edits)


@given(batch=batches(), elements=st.lists(CHANGED_ELEMENT, max_size=3), lengths=st.lists(CHANGED_LENGTH, max_size=1))
def test_changed_columns_have_the_same_outcome(
    both: Both, batch: tuple[Edits, int, int], elements: Any, lengths: Any
) -> None:
    edits, num_rows, width = batch
    columns = change(list(edits.to_columns()), elements, lengths)
    dtypes = [np.dtype(name) for name in ("<i4", "u1", "<i4", "<i4", "<f4")]
    if any(len(column) % dtype.itemsize for column, dtype in zip(columns, dtypes, strict=True)):
        assert not compiled.core.edits_proven(*columns, num_rows, width)
        return
    changed = Edits(*(np.frombuffer(column, dtype) for column, dtype in zip(columns, dtypes, strict=True)))
    if not len(changed.offsets):
        return  # `from_columns` has replaced an empty column
    expected, found = (_outcome(one.check_edits, changed, num_rows, width) for one in both)
    assert found == expected
    assert _proven(changed, num_rows, width) == (not expected and _is_ascending(changed))


@given(st.lists(st.binary(max_size=24), min_size=5, max_size=5), st.integers(0, 3), st.integers(1, 70))
def test_random_bytes_have_the_same_outcome(both: Both, columns: list[bytes], num_rows: int, width: int) -> None:
    def outcome(one: Implementation) -> str:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Edits, "check", one.check_edits)
            try:
                return repr(Edits.from_columns(columns, num_rows, width).to_columns())
            except LogitportError as error:
                return repr(error)

    python, fast = map(outcome, both)
    assert fast == python


@pytest.mark.usefixtures("both")
def test_columns_may_have_any_alignment() -> None:
    edits = RowEdits()
    edits.bias([1, 2], [0.5, -0.5])
    packed = Edits.pack([(1, edits)], 40)
    shifted = [memoryview(b"x" + column)[1:] for column in packed.to_columns()]
    assert compiled.core.edits_proven(*shifted, 2, 40)


@pytest.mark.usefixtures("both")
@pytest.mark.parametrize(
    "wrong",
    [
        np.array([0, 0], np.int64),  # as many bytes as four rows
        np.array([0, 7, 0, 7], np.int32)[::2],
        np.array([0, 0], ">i4"),
        np.array([0, 0], np.uint32),
        np.zeros((2, 1), np.int32)[:, ::-1][:, :0],
        [0, 0],
    ],
)
def test_columns_of_other_types_are_left_to_python(wrong: Any) -> None:
    kinds, offsets = np.full(2, EditKind.DENY, np.uint8), np.array([0, 1, 2], np.int32)
    ids, values = np.array([1, 2], np.int32), np.empty(0, np.float32)
    assert compiled.core.edits_proven(np.array([0, 0], np.int32), kinds, offsets, ids, values, 1, 8)
    assert not compiled.core.edits_proven(wrong, kinds, offsets, ids, values, 1, 8)


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
    states, histories = [_state(row) for row in rows], [History()] * len(rows)
    columns, events = compiled.core.edit_rows(states, histories, VOCAB_SIZE, uses_bitmasks=True)
    written = Edits(*columns)
    assert events == []
    packed = Edits.pack(enumerate(map(_row_edits, rows)), VOCAB_SIZE)
    assert written.to_columns() == packed.to_columns()
    written.check(len(rows), VOCAB_SIZE)


@pytest.mark.parametrize("wrong", [VOCAB_SIZE, -1])
def test_an_id_outside_the_vocabulary_is_refused(both: tuple[Implementation, Implementation], wrong: int) -> None:
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
