"""Edits: what logits-free processors answer with, and how they travel."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import numpy as np

from logitport.errors import InvalidArgument, InvalidTokenId
from logitport_proto import common_pb2

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import ArrayLike, NDArray


class EditKind(IntEnum):
    """What an edit does to its row."""

    DENY = common_pb2.EDIT_KIND_DENY  # -inf on the ids
    ALLOW = common_pb2.EDIT_KIND_ALLOW  # -inf on all other ids, values kept
    FORCE = common_pb2.EDIT_KIND_FORCE  # -inf everywhere, 0.0 on the one id
    BIAS = common_pb2.EDIT_KIND_BIAS  # add the values to the ids
    BITMASK = common_pb2.EDIT_KIND_BITMASK  # -inf where the bit is 0


def bitmask_words(vocab_size: int) -> int:
    """Number of int32 words of a token bitmask over `vocab_size` ids."""
    return (vocab_size + 31) // 32


def pack_bits(allowed: NDArray[np.bool_]) -> NDArray[np.int32]:
    """A token bitmask, int32[ceil(len(allowed) / 32)], from bool[vocab_size]; bits past the vocabulary are 0."""
    padded = np.zeros(bitmask_words(len(allowed)) * 32, np.bool_)
    padded[: len(allowed)] = allowed
    return np.packbits(padded, bitorder="little").view("<i4").astype(np.int32, copy=False)


def unpack_bits(words: NDArray[np.int32], vocab_size: int) -> NDArray[np.bool_]:
    """bool[vocab_size] from a token bitmask, int32[ceil(vocab_size / 32)]."""
    octets = words.astype("<i4", copy=False).view(np.uint8)
    return np.unpackbits(octets, count=vocab_size, bitorder="little").view(np.bool_)


class RowEdits:
    """Collects what the processors of one row say, in the order in which they say it."""

    __slots__ = ("_edits",)

    def __init__(self) -> None:
        self._edits: list[tuple[EditKind, NDArray[Any], NDArray[np.float32] | None]] = []

    def __bool__(self) -> bool:
        return bool(self._edits)

    def deny(self, token_ids: ArrayLike) -> None:
        """-inf on these ids, int[n]."""
        ids = _ids(token_ids)
        if ids.size:
            self._edits.append((EditKind.DENY, ids, None))

    def allow(self, token_ids: ArrayLike) -> None:
        """-inf on every other id; the values of these, int[n], stay."""
        self._edits.append((EditKind.ALLOW, _ids(token_ids), None))

    def force(self, token_id: int) -> None:
        """-inf everywhere and 0.0 on this id. What was said of the row before is void."""
        self._edits = [(EditKind.FORCE, np.array([operator.index(token_id)], np.int64), None)]

    def bias(self, token_ids: ArrayLike, values: ArrayLike) -> None:
        """Add finite values, float[n] or one for all, to these ids, int[n]; an id that stands twice gets both.

        Raises:
            InvalidArgument: the values are not finite, or not as many as the ids.
        """
        ids = _ids(token_ids)
        try:
            added = np.broadcast_to(np.asarray(values, np.float32), ids.shape)
        except ValueError as error:
            raise InvalidArgument(f"bias: {ids.size} ids need as many values, or one: {error}") from error
        if not np.isfinite(added).all():
            raise InvalidArgument("bias: values must be finite; to forbid an id, deny it")
        if ids.size:
            self._edits.append((EditKind.BIAS, ids, added))

    def bitmask(self, words: NDArray[np.int32]) -> None:
        """-inf where the bit is 0: int32[ceil(vocab_size / 32)], bit i % 32 (LSB first) of word i // 32 is id i's."""
        self._edits.append((EditKind.BITMASK, np.array(words, np.int32).reshape(-1), None))

    def extend(self, later: RowEdits) -> None:
        """Append what processors further down the chain said."""
        if later._edits and later._edits[0][0] is EditKind.FORCE:
            self._edits = list(later._edits)
        else:
            self._edits += later._edits

    def check(self, vocab_size: int) -> None:
        """Check every id and mask against the vocabulary.

        Raises:
            InvalidTokenId: an id is not in [0, vocab_size).
            InvalidArgument: a bitmask is not of ceil(vocab_size / 32) words.
        """
        for kind, ids, _ in self._edits:
            if kind is EditKind.BITMASK:
                if ids.size != bitmask_words(vocab_size):
                    raise InvalidArgument(
                        f"BITMASK of {ids.size} words; a vocabulary of {vocab_size} needs {bitmask_words(vocab_size)}"
                    )
            elif ids.size and not (ids.min() >= 0 and ids.max() < vocab_size):
                wrong = ids[(ids < 0) | (ids >= vocab_size)][0]
                raise InvalidTokenId(f"{kind.name} of token id {wrong}: ids must lie in [0, {vocab_size})")

    def denies_all(self, vocab_size: int) -> bool:
        """Whether these edits leave no id allowed. Reads the edits alone, no logits."""
        if all(
            kind is EditKind.BIAS or (kind is EditKind.DENY and ids.size < vocab_size) for kind, ids, _ in self._edits
        ):
            denied = sum(ids.size for kind, ids, _ in self._edits if kind is EditKind.DENY)
            if denied < vocab_size:
                return False
        elif len(self._edits) == 1 and self._edits[0][0] in (EditKind.FORCE, EditKind.ALLOW):
            return not self._edits[0][1].size
        allowed = np.ones(vocab_size, np.bool_)
        for kind, ids, _ in self._edits:
            if kind is EditKind.DENY:
                allowed[ids] = False
            elif kind is EditKind.BITMASK:
                allowed &= unpack_bits(ids, vocab_size)
            elif kind is not EditKind.BIAS:
                among = np.zeros(vocab_size, np.bool_)
                among[ids] = True
                allowed &= among
        return not allowed.any()

    def smallest(self, vocab_size: int) -> Iterable[tuple[EditKind, NDArray[Any], NDArray[np.float32] | None]]:
        """The edits, each as a list of ids or as a bitmask, whichever is smaller."""
        words = bitmask_words(vocab_size)
        for kind, ids, values in self._edits:
            if ids.size > words and kind in (EditKind.DENY, EditKind.ALLOW):
                allowed = np.full(vocab_size, kind is EditKind.DENY)
                allowed[ids] = kind is EditKind.ALLOW
                yield EditKind.BITMASK, pack_bits(allowed), None
            else:
                yield kind, ids, values


def _ids(token_ids: ArrayLike) -> NDArray[Any]:
    ids = np.asarray(token_ids).reshape(-1)
    if ids.dtype.kind not in "iu":
        if ids.size:
            raise InvalidTokenId(f"token ids must be integers, not {ids.dtype}")
        ids = ids.astype(np.int32)
    return ids


@dataclass(frozen=True, eq=False)
class Edits:
    """Edits to some rows of a batch, in compressed sparse row form.

    The edits of one row stand together, in the order in which they apply; a FORCE is the first of its row.

    Attributes:
        rows: the row that each edit changes, int32[edits].
        kinds: `EditKind` of each edit, uint8[edits].
        offsets: edit e owns `ids[offsets[e]:offsets[e + 1]]`, int32[edits + 1].
        ids: token ids, or words of bitmasks, int32[ids].
        values: what to add, float32[ids], 0 where an id is not of a BIAS; float32[0] where there is no BIAS.
    """

    rows: NDArray[np.int32]
    kinds: NDArray[np.uint8]
    offsets: NDArray[np.int32]
    ids: NDArray[np.int32]
    values: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.rows)

    @classmethod
    def pack(cls, rows: Iterable[tuple[int, RowEdits]], vocab_size: int) -> Edits:
        """From (row, what was said of it), each row once.

        Raises:
            InvalidTokenId, InvalidArgument: as `RowEdits.check`.
        """
        row_column: list[int] = []
        kind_column: list[int] = []
        id_parts: list[NDArray[Any]] = []
        biases: list[tuple[int, NDArray[np.float32]]] = []
        for row, row_edits in rows:
            row_edits.check(vocab_size)
            for kind, ids, values in row_edits.smallest(vocab_size):
                if values is not None:
                    biases.append((len(id_parts), values))
                row_column.append(row)
                kind_column.append(kind)
                id_parts.append(ids)
        offsets = np.zeros(len(id_parts) + 1, np.int32)
        np.cumsum([part.size for part in id_parts], out=offsets[1:])
        all_values = np.zeros(offsets[-1] if biases else 0, np.float32)
        for edit, values in biases:
            all_values[offsets[edit] : offsets[edit + 1]] = values
        return cls(
            rows=np.array(row_column, np.int32),
            kinds=np.array(kind_column, np.uint8),
            offsets=offsets,
            ids=np.concatenate(id_parts).astype(np.int32, copy=False) if id_parts else np.empty(0, np.int32),
            values=all_values,
        )

    def to_proto(self) -> common_pb2.Edits:
        """The message."""
        return common_pb2.Edits(
            rows=self.rows.astype("<i4", copy=False).tobytes(),
            kinds=self.kinds.tobytes(),
            offsets=self.offsets.astype("<i4", copy=False).tobytes(),
            ids=self.ids.astype("<i4", copy=False).tobytes(),
            values=self.values.astype("<f4", copy=False).tobytes(),
        )

    @classmethod
    def from_proto(cls, message: common_pb2.Edits, num_rows: int, vocab_size: int) -> Edits:
        """From a message, checked against a batch of `num_rows` rows of `vocab_size` logits.

        Raises:
            InvalidArgument: the columns do not fit together, a row is outside the batch, rows are scattered,
                a kind is unknown, or an edit has the wrong number of ids.
            InvalidTokenId: an id is not in [0, vocab_size).
        """
        try:
            edits = cls(
                rows=np.frombuffer(message.rows, "<i4"),
                kinds=np.frombuffer(message.kinds, np.uint8),
                offsets=np.frombuffer(message.offsets or b"\0\0\0\0", "<i4"),
                ids=np.frombuffer(message.ids, "<i4"),
                values=np.frombuffer(message.values, "<f4"),
            )
        except ValueError as error:
            raise InvalidArgument(f"Edits: a column is not a whole number of elements: {error}") from error
        edits.check(num_rows, vocab_size)
        return edits

    def check(self, num_rows: int, vocab_size: int) -> None:
        """Check everything against a batch of `num_rows` rows of `vocab_size` logits. Raises as `from_proto`."""
        counts = np.diff(self.offsets)
        if not (
            len(self.kinds) == len(self.rows) == len(counts)
            and self.offsets[0] == 0
            and self.offsets[-1] == len(self.ids)
            and len(self.values) in (0, len(self.ids))
            and (counts >= 0).all()
        ):
            raise InvalidArgument("Edits: the columns rows, kinds, offsets, ids and values do not fit together")
        if not len(self):
            return
        if self.rows.min() < 0 or self.rows.max() >= num_rows:
            raise InvalidArgument(
                f"Edits: rows must lie in [0, {num_rows}), but go from {self.rows.min()} to {self.rows.max()}"
            )
        starts = np.flatnonzero(np.diff(self.rows, prepend=-1))
        if len(np.unique(self.rows)) != len(starts):
            raise InvalidArgument("Edits: the edits of one row must stand together")
        if self.kinds.min() < EditKind.DENY or self.kinds.max() > EditKind.BITMASK:
            raise InvalidArgument(f"Edits: unknown kind among {np.unique(self.kinds).tolist()}")
        forced = np.flatnonzero(self.kinds == EditKind.FORCE)
        if (counts[forced] != 1).any() or not np.isin(forced, starts).all():
            raise InvalidArgument("Edits: a FORCE has exactly one id and is the first edit of its row")
        masks = self.kinds == EditKind.BITMASK
        if (counts[masks] != bitmask_words(vocab_size)).any():
            raise InvalidArgument(f"Edits: a BITMASK over {vocab_size} ids has {bitmask_words(vocab_size)} words")
        token_ids = self.ids[np.repeat(~masks, counts)] if masks.any() else self.ids
        if token_ids.size and (token_ids.min() < 0 or token_ids.max() >= vocab_size):
            raise InvalidTokenId(
                f"Edits: token ids must lie in [0, {vocab_size}), but go from {token_ids.min()} to {token_ids.max()}"
            )
