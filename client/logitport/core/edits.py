"""Edits: the result of logits-free processors, in packed columns."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from logitport.core.compiled import core
from logitport.core.row_edits import (
    EditKind,
    RowEdits,
    bitmask_words,
    check_edit,
    pack_bits,
    smallest,
    unpack_bits,
    within,
)
from logitport.errors import InvalidArgument, LimitExceeded
from logitport.system.frame_limits import MAX_STEP_EDIT_IDS
from logitport_proto import common_pb2

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import TypeAlias

    Buffer: TypeAlias = bytes | memoryview

    from numpy.typing import NDArray

__all__ = ["EditColumns", "EditKind", "Edits", "RowEdits", "bitmask_words", "pack_bits", "unpack_bits"]

# Lists that are read one by one.
_FEW_EDITS = 64
_NO_OFFSETS = bytes(4)  # the column of no edits, which may also be empty
_KINDS = bytes(EditKind)
_KEEP_OTHERS = bytes((EditKind.DENY, EditKind.BIAS))
_KIND = {int(kind): kind for kind in EditKind}  # a lookup is faster than EditKind(kind)

# The rank of each kind, 0 to 3, in a row with edits ordered by kind. ALLOW and BITMASK keep their order.
_RANK_OF_KIND = np.zeros(max(EditKind) + 1, np.int32)
_RANK_OF_KIND[[EditKind.DENY, EditKind.ALLOW, EditKind.BITMASK, EditKind.BIAS]] = 1, 2, 2, 3


class EditColumns(NamedTuple):
    """Columns of edits as little-endian bytes, in the order of the fields of the message `Edits`.

    Attributes:
        rows, kinds, offsets, ids, values: as those of the class `Edits`. Without edits, `offsets` may be empty.
    """

    rows: bytes
    kinds: bytes
    offsets: bytes
    ids: bytes
    values: bytes

    def write_to(self, message: common_pb2.Edits) -> None:
        """Set all fields of a message."""
        message.rows, message.kinds, message.offsets, message.ids, message.values = self


@dataclass(frozen=True, eq=False)
class Edits:
    """Edits to some rows of a batch, in compressed sparse row form.

    The edits of one row are adjacent, and apply in their order; a FORCE is the first of its row.

    Attributes:
        rows: the row that each edit changes, int32[edits].
        kinds: `EditKind` of each edit, uint8[edits].
        offsets: edit e owns `ids[offsets[e]:offsets[e + 1]]`, int32[edits + 1].
        ids: token ids, or words of bitmasks, int32[ids].
        values: the values to add, float32[ids], 0 for ids of other edits than BIAS; float32[0] if there is no BIAS.
    """

    rows: NDArray[np.int32]
    kinds: NDArray[np.uint8]
    offsets: NDArray[np.int32]
    ids: NDArray[np.int32]
    values: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def counts(self) -> NDArray[np.int32]:
        """How many ids (or words) each edit has, int32[edits]."""
        counts: NDArray[np.int32] = self.offsets[1:] - self.offsets[:-1]
        return counts

    def leaves_every_row_an_id(self, vocab_size: int) -> bool:
        """Whether the columns alone prove it: only DENY and BIAS edits, with fewer ids in all than one row has.

        False means that it is not proven.
        """
        return len(self.ids) < vocab_size and not self.kinds.tobytes().translate(None, _KEEP_OTHERS)

    @classmethod
    def pack(cls, rows: Iterable[tuple[int, RowEdits]], vocab_size: int) -> Edits:
        """Pack (row, edits of the row) pairs, each row once.

        Raises:
            InvalidArgument: as `RowEdits.check`.
            LimitExceeded: there are too many ids.
        """
        words = bitmask_words(vocab_size)
        row_column: list[int] = []
        kind_column = bytearray()
        parts: list[NDArray[Any]] = []
        biases: list[tuple[int, NDArray[np.float32]]] = []
        for row, row_edits in rows:
            for edit in row_edits:
                kind, ids, added = edit if edit[1].size <= words else smallest(edit, vocab_size)
                if added is not None:
                    biases.append((len(parts), added))
                row_column.append(row)
                kind_column.append(kind)
                parts.append(ids)
        ends = list(accumulate(map(len, parts), initial=0))
        if ends[-1] > MAX_STEP_EDIT_IDS:
            raise LimitExceeded(
                f"the edits of a step have {ends[-1]} ids, or words of bitmasks; the limit is {MAX_STEP_EDIT_IDS}: "
                "send fewer rows in one step"
            )
        offsets = np.array(ends, np.int32)
        values = np.zeros(offsets[-1] if biases else 0, np.float32)
        for index, added in biases:
            values[offsets[index] : offsets[index + 1]] = added
        edits = cls(
            rows=np.array(row_column, np.int32),
            kinds=np.frombuffer(kind_column, np.uint8),
            offsets=offsets,
            ids=np.concatenate(parts) if parts else np.empty(0, np.int32),
            values=values,
        )
        edits._check_ids(vocab_size)
        return edits if edits.ids.dtype == np.int32 else replace(edits, ids=edits.ids.astype(np.int32))

    def unpack(self, num_rows: int) -> list[RowEdits]:
        """Return the edits of each row of a batch; the inverse of `pack`."""
        rows = [RowEdits() for _ in range(num_rows)]
        offsets, ids, values = self.offsets.tolist(), self.ids, self.values
        for row, kind, begin, end in zip(self.rows.tolist(), self.kinds.tolist(), offsets, offsets[1:]):  # noqa: B905
            added = values[begin:end] if kind == EditKind.BIAS else None
            rows[row].say(_KIND[kind], ids[begin:end], added)
        return rows

    def moved(self, rows: Sequence[int]) -> Edits:
        """Return the same edits with row i replaced by row `rows[i]`."""
        return replace(self, rows=np.array(rows, np.int32)[self.rows])

    def joined(self, other: Edits) -> Edits:
        """Return these edits and others, in the order of the rows. Rows ascend in both.

        Edits of the same row follow these. They have no FORCE.
        """
        if not len(self) or not len(other):
            return self if len(self) else other
        values = self.values
        if self.values.size or other.values.size:
            values = np.concatenate(
                [each.values if each.values.size else np.zeros(len(each.ids), np.float32) for each in (self, other)]
            )
        both = Edits(
            rows=np.concatenate((self.rows, other.rows)),
            kinds=np.concatenate((self.kinds, other.kinds)),
            offsets=np.concatenate((self.offsets, other.offsets[1:] + self.offsets[-1])),
            ids=np.concatenate((self.ids, other.ids)),
            values=values,
        )
        return both.taken(np.argsort(both.rows, kind="stable"))

    def followed_by(self, later: Edits) -> Edits:
        """Return these edits and the later processors'. Rows ascend in both. A FORCE discards what precedes it."""
        forced = later.rows[later.kinds == EditKind.FORCE]
        earlier = self.taken(np.flatnonzero(~np.isin(self.rows, forced))) if forced.size else self
        return earlier.joined(later)

    def merged(self) -> Edits:
        """Return equivalent edits, with all DENYs of a row, and all BIASes of a row, joined.

        All kinds but FORCE may be reordered: what one sets to -inf stays -inf. The BIASes of a row keep their order.
        """
        first_of_row = np.ones(len(self), np.bool_)
        first_of_row[1:] = self.rows[1:] != self.rows[:-1]
        ranks = np.cumsum(first_of_row, dtype=np.int32) * 4 + _RANK_OF_KIND[self.kinds]
        ordered = self.taken(np.argsort(ranks, kind="stable"))  # first a FORCE, last the BIASes
        rows, kinds = ordered.rows, ordered.kinds
        goes_on = (rows[1:] == rows[:-1]) & (kinds[1:] == kinds[:-1])
        goes_on &= (kinds[1:] == EditKind.DENY) | (kinds[1:] == EditKind.BIAS)
        begins = np.ones(len(self) + 1, np.bool_)
        begins[1:-1] = ~goes_on
        return replace(ordered, rows=rows[begins[:-1]], kinds=kinds[begins[:-1]], offsets=ordered.offsets[begins])

    def taken(self, order: NDArray[np.intp]) -> Edits:
        """Return the edits with these indices, each at most once, in this order."""
        counts = self.counts[order]
        offsets = np.concatenate((np.zeros(1, np.int32), np.cumsum(counts, dtype=np.int32)))
        sources = np.arange(offsets[-1], dtype=np.int32) + np.repeat(self.offsets[:-1][order] - offsets[:-1], counts)
        return Edits(
            rows=self.rows[order],
            kinds=self.kinds[order],
            offsets=offsets,
            ids=self.ids[sources],
            values=self.values[sources] if self.values.size else self.values,
        )

    def to_columns(self) -> EditColumns:
        """Return copies of the columns as bytes."""
        return EditColumns(
            self.rows.astype("<i4", copy=False).tobytes(),
            self.kinds.tobytes(),
            self.offsets.astype("<i4", copy=False).tobytes(),
            self.ids.astype("<i4", copy=False).tobytes(),
            self.values.astype("<f4", copy=False).tobytes(),
        )

    def to_proto(self) -> common_pb2.Edits:
        """Convert to a message."""
        message = common_pb2.Edits()
        self.to_columns().write_to(message)
        return message

    @classmethod
    def from_proto(cls, message: common_pb2.Edits, num_rows: int, vocab_size: int) -> Edits:
        """Convert from a message, and check it against a batch of `num_rows` rows of `vocab_size` logits.

        Raises:
            InvalidArgument: as `check`.
        """
        columns = EditColumns(message.rows, message.kinds, message.offsets, message.ids, message.values)
        return cls.from_columns(columns, num_rows, vocab_size)

    @classmethod
    def from_columns(cls, columns: Sequence[Buffer], num_rows: int, vocab_size: int) -> Edits:
        """Invert `to_columns`, and check against a batch of `num_rows` rows of `vocab_size` logits.

        `columns` are `EditColumns`, or views in their order. The arrays share their memory.

        Raises:
            InvalidArgument: as `check`.
        """
        try:
            edits = cls.from_checked_columns(columns)
        except ValueError as error:
            raise InvalidArgument(f"Edits: a column is not a whole number of elements: {error}") from error
        edits.check(num_rows, vocab_size)
        return edits

    @classmethod
    def from_checked_columns(cls, columns: Sequence[Buffer]) -> Edits:
        """Invert `to_columns` without a check. Raises ValueError if a column is not a whole number of elements."""
        rows, kinds, offsets, ids, values = columns
        return cls(
            rows=np.frombuffer(rows, "<i4"),
            kinds=np.frombuffer(kinds, np.uint8),
            offsets=np.frombuffer(offsets or _NO_OFFSETS, "<i4"),
            ids=np.frombuffer(ids, "<i4"),
            values=np.frombuffer(values, "<f4"),
        )

    def check(self, num_rows: int, vocab_size: int) -> None:
        """Check all columns against a batch of `num_rows` rows of `vocab_size` logits.

        Raises:
            InvalidArgument: the columns' lengths do not match, a row is outside the batch, the edits of a row are not
                adjacent, a kind is unknown, or an edit has the wrong number of ids.
            InvalidArgument: an id is not in [0, vocab_size).
        """
        columns = self.rows, self.kinds, self.offsets, self.ids, self.values
        if core is not None and core.edits_proven(*columns, num_rows, vocab_size):
            return
        self.python_check(num_rows, vocab_size)

    def python_check(self, num_rows: int, vocab_size: int) -> None:
        """Check as `check`, in Python. Accepts rows in any order, and raises the errors."""
        self._check_columns()
        if not len(self):
            return
        self._check_rows(num_rows)
        self._check_kinds()
        self._check_ids(vocab_size)
        if len(self.values) and not np.isfinite(self.values).all():
            raise InvalidArgument("Edits: the values of a BIAS must be finite")

    def _check_columns(self) -> None:
        offsets = self.offsets
        if not (
            len(self.kinds) == len(self.rows) == len(offsets) - 1
            and offsets[0] == 0
            and offsets[-1] == len(self.ids)
            and len(self.values) in (0, len(self.ids))
            and np.logical_and.reduce(offsets[:-1] <= offsets[1:])  # not a difference: it can overflow
        ):
            raise InvalidArgument("Edits: the columns rows, kinds, offsets, ids and values do not fit together")

    def _check_rows(self, num_rows: int) -> None:
        rows = self.rows
        ascending = np.logical_and.reduce(rows[:-1] <= rows[1:])
        lowest, highest = (rows[0], rows[-1]) if ascending else (rows.min(), rows.max())
        if lowest < 0 or highest >= num_rows:
            raise InvalidArgument(f"Edits: rows must lie in [0, {num_rows}), but go from {lowest} to {highest}")
        if not ascending and len(np.unique(rows)) != 1 + np.count_nonzero(rows[:-1] != rows[1:]):
            raise InvalidArgument("Edits: the edits of one row must be adjacent")

    def _check_kinds(self) -> None:
        kinds = self.kinds.tobytes()
        if unknown := kinds.translate(None, _KINDS):
            raise InvalidArgument(f"Edits: unknown kind among {sorted(set(unknown))}")
        if EditKind.BIAS in kinds and len(self.values) != len(self.ids):
            raise InvalidArgument(f"Edits: a BIAS, but {len(self.values)} values for {len(self.ids)} ids")
        if EditKind.FORCE in kinds:
            forced = self.kinds == EditKind.FORCE
            if (self.counts[forced] != 1).any() or (forced[1:] & (self.rows[1:] == self.rows[:-1])).any():
                raise InvalidArgument("Edits: a FORCE has exactly one id and is the first edit of its row")

    def _check_ids(self, vocab_size: int) -> None:
        kinds, offsets = self.kinds.tobytes(), self.offsets
        if EditKind.BITMASK not in kinds:
            if within(self.ids, vocab_size):
                return
        else:
            has_words = self.kinds == EditKind.BITMASK
            fits = bool((self.counts[has_words] == bitmask_words(vocab_size)).all())
            if fits and all(within(ids, vocab_size) for ids in self._ids_of(~has_words)):
                return
        for edit, kind in enumerate(kinds):  # check each edit, so that the error names it
            check_edit(EditKind(kind), self.ids[offsets[edit] : offsets[edit + 1]], vocab_size)

    def _ids_of(self, selected: NDArray[np.bool_]) -> list[NDArray[np.int32]]:
        """The ids of these edits, bool[edits]: an array for each edit if there are few, otherwise one for all."""
        if np.count_nonzero(selected) > _FEW_EDITS:  # a reduction takes 2 us, however short the list
            return [self.ids[np.repeat(selected, self.counts)]]
        return [self.ids[self.offsets[edit] : self.offsets[edit + 1]] for edit in np.flatnonzero(selected)]
