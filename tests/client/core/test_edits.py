from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from logitport import InvalidArgument
from logitport.core.edits import EditColumns, EditKind, Edits, RowEdits, bitmask_words, pack_bits, unpack_bits
from logitport.core.row_edits import smallest
from logitport.ops import apply_edits
from logitport.system.installation import OUR_PACKAGES
from logitport_proto import common_pb2
from tests.core.edits_strategies import row_edits

ROWS = 8


@st.composite
def rows_with_edits(draw: st.DrawFn) -> tuple[int, list[tuple[int, RowEdits]]]:
    """A vocabulary size, and edits of some rows, in any order."""
    vocab_size = draw(st.integers(1, 70))
    rows = draw(st.lists(st.integers(0, ROWS - 1), unique=True))
    return vocab_size, [(row, draw(row_edits(vocab_size, 2.0**127, max_ids=2 * vocab_size))) for row in rows]


def allowed_by(edits_of_row: RowEdits, vocab_size: int) -> list[bool]:
    """Brute force: which ids a row's edits leave."""
    allowed = [True] * vocab_size
    for kind, ids, _ in edits_of_row:
        named = set(ids.tolist())
        for token_id in range(vocab_size):
            if kind is EditKind.DENY:
                allowed[token_id] &= token_id not in named
            elif kind is EditKind.BITMASK:
                allowed[token_id] &= bool(int(ids[token_id // 32]) >> (token_id % 32) & 1)
            elif kind is not EditKind.BIAS:
                allowed[token_id] &= token_id in named
    return allowed


def deny(*token_ids: int) -> RowEdits:
    edits_of_row = RowEdits()
    edits_of_row.deny(token_ids)
    return edits_of_row


@given(st.lists(st.booleans(), min_size=1, max_size=100))
def test_bits_round_trip(allowed: list[bool]) -> None:
    words = pack_bits(np.array(allowed))
    assert words.dtype == np.int32
    assert len(words) == bitmask_words(len(allowed))
    assert unpack_bits(words, len(allowed)).tolist() == allowed
    assert not unpack_bits(words, 32 * len(words))[len(allowed) :].any()


def test_bit_layout() -> None:
    allowed = np.zeros(40, np.bool_)
    allowed[[0, 31, 33]] = True
    assert pack_bits(allowed).tolist() == [1 - 2**31, 2]


@given(rows_with_edits())
def test_packed_edits_equal_the_rows_edits(batch: tuple[int, list[tuple[int, RowEdits]]]) -> None:
    vocab_size, rows = batch
    edits = Edits.pack(rows, vocab_size)
    edits.check(ROWS, vocab_size)
    place = 0
    for row, edits_of_row in rows:
        for edit in edits_of_row:
            kind, ids, values = smallest(edit, vocab_size)
            span = slice(edits.offsets[place], edits.offsets[place + 1])
            assert (edits.rows[place], edits.kinds[place]) == (row, kind)
            assert edits.ids[span].tolist() == ids.tolist()
            expected = np.zeros(len(ids)) if values is None else values
            assert edits.values[span].tolist() == (expected.tolist() if edits.values.size else [])
            place += 1
    assert place == len(edits)
    assert edits.offsets[-1] == len(edits.ids)
    assert [column.dtype for column in (edits.rows, edits.offsets, edits.ids)] == [np.int32] * 3


@given(rows_with_edits())
def test_proto_round_trip(batch: tuple[int, list[tuple[int, RowEdits]]]) -> None:
    vocab_size, rows = batch
    edits = Edits.pack(rows, vocab_size)
    message = common_pb2.Edits.FromString(edits.to_proto().SerializeToString())
    again = Edits.from_proto(message, ROWS, vocab_size)
    for column in ("rows", "kinds", "offsets", "ids", "values"):
        assert getattr(again, column).tolist() == getattr(edits, column).tolist()


def test_columns_are_in_the_order_of_the_message() -> None:
    fields = sorted(common_pb2.Edits.DESCRIPTOR.fields, key=lambda field: field.number)
    assert [field.name for field in fields] == list(EditColumns._fields)
    columns = EditColumns(b"r", b"k", b"o", b"i", b"v")
    message = common_pb2.Edits()
    columns.write_to(message)
    assert message == common_pb2.Edits(**columns._asdict())


@given(rows_with_edits())
def test_unpack_inverts_pack(batch: tuple[int, list[tuple[int, RowEdits]]]) -> None:
    vocab_size, rows = batch
    edits = Edits.pack(sorted(rows, key=lambda row: row[0]), vocab_size)
    again = Edits.pack(enumerate(edits.unpack(ROWS)), vocab_size)
    assert again.to_columns() == edits.to_columns()


@given(rows_with_edits())
def test_merged_edits_are_equivalent(batch: tuple[int, list[tuple[int, RowEdits]]]) -> None:
    vocab_size, rows = batch
    edits = Edits.pack(rows, vocab_size)
    merged = edits.merged()
    merged.check(ROWS, vocab_size)
    values = np.random.default_rng(0).standard_normal((ROWS, vocab_size), np.float32)
    values[:, ::3] *= 1e30
    before, after = torch.from_numpy(values.copy()), torch.from_numpy(values.copy())
    apply_edits(edits, before), apply_edits(merged, after)
    assert torch.equal(before.view(torch.int32), after.view(torch.int32))
    for row in merged.unpack(ROWS):
        kinds = Counter(kind for kind, _, _ in row)
        assert kinds[EditKind.DENY] <= 1
        assert kinds[EditKind.BIAS] <= 1


@given(rows_with_edits())
def test_denies_all(batch: tuple[int, list[tuple[int, RowEdits]]]) -> None:
    vocab_size, rows = batch
    for _, edits_of_row in rows:
        assert edits_of_row.denies_all(vocab_size) == (not any(allowed_by(edits_of_row, vocab_size)))


@given(rows_with_edits())
def test_the_smaller_form_allows_the_same(batch: tuple[int, list[tuple[int, RowEdits]]]) -> None:
    vocab_size, rows = batch
    for _, edits_of_row in rows:
        for edit in edits_of_row:
            small = smallest(edit, vocab_size)
            if edit[0] in (EditKind.DENY, EditKind.ALLOW):
                assert len(small[1]) <= bitmask_words(vocab_size)
                was, now = RowEdits(), RowEdits()
                was._edits, now._edits = [edit], [small]
                assert allowed_by(was, vocab_size) == allowed_by(now, vocab_size)
            else:
                assert small is edit


def test_a_list_as_long_as_a_mask_stays_a_list() -> None:
    assert Edits.pack([(0, deny(1, 2))], 64).kinds.tolist() == [EditKind.DENY]
    assert Edits.pack([(0, deny(1, 2, 3))], 64).kinds.tolist() == [EditKind.BITMASK]


def test_chains_compose_in_order() -> None:
    first, second, third = deny(1), deny(2), RowEdits()
    third.force(3)
    first.extend(second)
    assert [ids.tolist() for _, ids, _ in first] == [[1], [2]]
    assert [ids.tolist() for _, ids, _ in second] == [[2]]
    first.extend(third)
    first.extend(deny(4))
    assert [(kind, ids.tolist()) for kind, ids, _ in first] == [(EditKind.FORCE, [3]), (EditKind.DENY, [4])]
    assert [kind for kind, _, _ in third] == [EditKind.FORCE]


def test_row_edits_are_true_if_there_are_any() -> None:
    edits_of_row = RowEdits()
    edits_of_row.deny([])
    edits_of_row.bias([], [])
    edits_of_row.bias([], 1.0)
    assert not edits_of_row
    edits_of_row.allow([])
    assert edits_of_row


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda edits_of_row: edits_of_row.deny([0.5]), InvalidArgument, "must be integers, not float64"),
        (lambda edits_of_row: edits_of_row.allow([True]), InvalidArgument, "must be integers, not bool"),
        (lambda edits_of_row: edits_of_row.deny([2**70]), InvalidArgument, "must be integers, not object"),
        (lambda edits_of_row: edits_of_row.force(2**70), InvalidArgument, "must be integers, not object"),
        (lambda edits_of_row: edits_of_row.deny("abc"), InvalidArgument, "must be integers, not text"),
        (
            lambda edits_of_row: edits_of_row.force(1.0),
            InvalidArgument,
            "force: pass one token id, an integer, not float",
        ),
        (
            lambda edits_of_row: edits_of_row.force([1]),
            InvalidArgument,
            "force: pass one token id, an integer, not list",
        ),
        (
            lambda edits_of_row: edits_of_row.bias([1, 2], [1.0]),
            InvalidArgument,
            "^bias: 2 ids and 1 values; .* one number",
        ),
        (lambda edits_of_row: edits_of_row.bias([1, 2, 3], [1.0, 2.0]), InvalidArgument, "3 ids and 2 values; [^()]*$"),
        (
            lambda edits_of_row: edits_of_row.bias([1, 2], [[1.0, 2.0], [3.0, 4.0]]),
            InvalidArgument,
            "2 ids and 4 values",
        ),
        (lambda edits_of_row: edits_of_row.bias([1], ["x"]), InvalidArgument, "^bias: values must be numbers"),
        (lambda edits_of_row: edits_of_row.bias([1], {2: 3.0}), InvalidArgument, "^bias: values must be numbers"),
        (lambda edits_of_row: edits_of_row.bias([1], float("nan")), InvalidArgument, "must be finite"),
        (lambda edits_of_row: edits_of_row.bias([1, 2], [0.0, -float("inf")]), InvalidArgument, "deny it"),
    ],
)
def test_invalid_edits_are_refused(call: Any, error: type[Exception], message: str) -> None:
    edits_of_row = RowEdits()
    with pytest.raises(error, match=message):
        call(edits_of_row)
    assert not edits_of_row


@pytest.mark.parametrize("wrong", [-1, 64, 2**31, 2**32 + 1, -(2**32)])
@pytest.mark.parametrize("method", ["deny", "allow", "force", "bias"])
def test_ids_outside_the_vocabulary(method: str, wrong: int) -> None:
    edits_of_row = RowEdits()
    arguments: list[Any] = [wrong] if method == "force" else [[0, wrong]]
    getattr(edits_of_row, method)(*arguments, *([1.0] if method == "bias" else []))
    message = rf"{method.upper()} of token id {wrong}: ids must lie in \[0, 64\)"
    with pytest.raises(InvalidArgument, match=message):
        edits_of_row.check(64)
    with pytest.raises(InvalidArgument, match=message):
        Edits.pack([(0, deny(1)), (1, edits_of_row)], 64)


@pytest.mark.parametrize("method", ["deny", "allow"])
def test_a_wrong_id_among_so_many_that_they_become_a_mask(method: str) -> None:
    edits_of_row = RowEdits()
    getattr(edits_of_row, method)([-1, 1, 2, 3])
    with pytest.raises(InvalidArgument, match="token id -1"):
        Edits.pack([(0, edits_of_row)], 64)


def message_of(**changes: Any) -> common_pb2.Edits:
    """A DENY of 1 and 2 in row 0, a BIAS of 3 in row 2, with changed columns."""
    columns: dict[str, tuple[Any, Any]] = {
        "rows": ([0, 2], "<i4"),
        "kinds": ([EditKind.DENY, EditKind.BIAS], np.uint8),
        "offsets": ([0, 2, 3], "<i4"),
        "ids": ([1, 2, 3], "<i4"),
        "values": ([0, 0, 1], "<f4"),
    }
    message = common_pb2.Edits()
    for name, (column, dtype) in columns.items():
        changed = changes.get(name, column)
        setattr(message, name, changed if isinstance(changed, bytes) else np.array(changed, dtype).tobytes())
    return message


FORCE, DENY, BITMASK = int(EditKind.FORCE), int(EditKind.DENY), int(EditKind.BITMASK)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rows": b"\0\0\0\0\0"}, "not a whole number"),
        ({"rows": [0]}, "do not fit together"),
        ({"kinds": [1]}, "do not fit together"),
        ({"offsets": [0, 3]}, "do not fit together"),
        ({"offsets": [1, 2, 3]}, "do not fit together"),
        ({"offsets": [0, 2, 2]}, "do not fit together"),
        ({"offsets": [0, 2, 4]}, "do not fit together"),
        ({"offsets": [0, 4, 3]}, "do not fit together"),
        ({"offsets": [0, 2**31 - 1, -2, 3], "rows": [0, 0, 0], "kinds": [1, 1, 1]}, "do not fit together"),
        ({"offsets": b""}, "do not fit together"),
        ({"values": [0, 1]}, "do not fit together"),
        ({"values": []}, "a BIAS, but 0 values for 3 ids"),
        ({"values": [0, 0, float("nan")]}, "must be finite"),
        ({"rows": [0, 3]}, r"rows must lie in \[0, 3\), but go from 0 to 3"),
        ({"rows": [-1, 2]}, r"rows must lie in \[0, 3\), but go from -1 to 2"),
        ({"rows": [2, -1]}, r"rows must lie in \[0, 3\), but go from -1 to 2"),
        ({"kinds": [0, 4]}, r"unknown kind among \[0\]"),
        ({"kinds": [1, 200]}, r"unknown kind among \[200\]"),
        ({"kinds": [FORCE, 4]}, "a FORCE has exactly one id"),
        ({"kinds": [DENY, FORCE], "rows": [1, 1]}, "first edit of its row"),
        ({"kinds": [FORCE, FORCE], "rows": [1, 1], "offsets": [0, 1, 2], "ids": [1, 2], "values": []}, "first edit"),
        ({"kinds": [BITMASK, DENY], "offsets": [0, 1, 3]}, "BITMASK of 1 words"),
        (
            {"rows": [0, 2, 0], "kinds": [1, 1, 1], "offsets": [0, 1, 2, 3]},
            "the edits of one row must be adjacent",
        ),
    ],
)
def test_refused_messages(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        Edits.from_proto(message_of(**changes), 3, 64)


@pytest.mark.parametrize("wrong", [-1, 64])
@pytest.mark.parametrize("kinds", [[DENY, DENY], [BITMASK, DENY]])
def test_refused_ids_in_messages(kinds: list[int], wrong: int) -> None:
    with pytest.raises(InvalidArgument, match=f"DENY of token id {wrong}"):
        Edits.from_proto(message_of(kinds=kinds, ids=[7, -1 if BITMASK in kinds else 2, wrong]), 3, 64)


def test_words_of_a_mask_are_not_checked_as_ids() -> None:
    edits = Edits.from_proto(message_of(kinds=[BITMASK, DENY], ids=[-1, 2**31 - 1, 5]), 3, 64)
    assert edits.counts.tolist() == [2, 1]


@pytest.mark.parametrize(
    ("change", "plain"),
    [
        (lambda edits: None, True),
        (lambda edits: edits.deny([0, 1]), True),
        (lambda edits: edits.bias([0], 1.0), True),
        (lambda edits: edits.deny(list(range(64))), False),
        (lambda edits: edits.deny([0, 1] * 32), False),
        (lambda edits: edits.allow([]), False),
        (lambda edits: edits.force(1), False),
    ],
)
def test_edits_that_leave_an_id_in_every_row(change: Any, plain: bool) -> None:
    row = RowEdits()
    change(row)
    assert Edits.pack([(0, row)], 64).leaves_every_row_an_id(64) == plain
    assert not (plain and row.denies_all(64))


SOURCE = """
def edit(edits):
    edits.deny([1])
    edits.deny([9])
"""


def error_of(module: dict[str, Any], edits: RowEdits) -> InvalidArgument:
    exec(compile(SOURCE, "mine.py", "exec"), module)
    module["edit"](edits)
    with pytest.raises(InvalidArgument) as raised:
        edits.check(8)
    return raised.value


def test_the_line_of_a_processor() -> None:
    trace = error_of({"__package__": "mine"}, RowEdits()).remote_traceback
    assert 'File "mine.py", line 4, in edit' in trace
    assert trace.endswith("InvalidArgument: DENY of token id 9: ids must lie in [0, 8)\n")


def test_edits_that_were_forced_away_leave_no_line() -> None:
    edits = RowEdits()
    edits.deny([9])
    edits.deny([9])
    edits.force(1)
    edits.say(*next(iter(denying(9))))
    with pytest.raises(InvalidArgument) as raised:
        edits.check(8)
    assert raised.value.remote_traceback == ""


def denying(token_id: int) -> RowEdits:
    edits = RowEdits()
    edits.deny([token_id])
    return edits


@pytest.mark.parametrize("package", [*OUR_PACKAGES, "logitport_builtins.grammar", "logitport_session.dialects"])
def test_code_of_logitport_is_not_shown(package: str) -> None:
    assert error_of({"__package__": package}, RowEdits()).remote_traceback == ""


def test_an_exempt_id_keeps_its_logit() -> None:
    edits = RowEdits()
    edits.deny([3, 5])
    edits.deny([5])
    edits.bias([5, 6], [1.0, 2.0])
    edits.allow([6, 7])
    edits.bitmask(pack_bits(np.arange(40) < 5))
    edits.exempt(5)
    found = [(kind.name, ids.tolist(), None if values is None else values.tolist()) for kind, ids, values in edits]
    assert found == [
        ("DENY", [3], None),
        ("BIAS", [6], [2.0]),
        ("ALLOW", [6, 7, 5], None),
        ("BITMASK", pack_bits(np.arange(40) < 6).tolist(), None),
    ]
    edits.force(1)
    edits.exempt(5)
    assert [(kind.name, ids.tolist()) for kind, ids, _ in edits] == [("FORCE", [1])]
