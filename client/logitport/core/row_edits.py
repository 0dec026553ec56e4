"""The edits of one row, and the kinds of edits."""

from __future__ import annotations

import operator
import sys
import traceback
from enum import IntEnum
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from logitport.core import tensors
from logitport.core.row_events import MAX_ROW_EVENTS, RowEvent, make_event
from logitport.errors import InvalidArgument
from logitport.system.installation import OUR_PACKAGES
from logitport_proto import common_pb2

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import CodeType

    import torch
    from numpy.typing import ArrayLike, NDArray


class EditKind(IntEnum):
    """The effect of an edit on its row."""

    DENY = common_pb2.EDIT_KIND_DENY  # -inf on the ids
    ALLOW = common_pb2.EDIT_KIND_ALLOW  # -inf on all other ids, values kept
    FORCE = common_pb2.EDIT_KIND_FORCE  # -inf everywhere, 0.0 on the one id
    BIAS = common_pb2.EDIT_KIND_BIAS  # add the values to the ids
    BITMASK = common_pb2.EDIT_KIND_BITMASK  # -inf where the bit is 0


def bitmask_words(vocab_size: int) -> int:
    """Number of int32 words of a token bitmask over `vocab_size` ids."""
    return (vocab_size + 31) // 32


def pack_bits(allowed: NDArray[np.bool_]) -> NDArray[np.int32]:
    """Pack bool[vocab_size] to a token bitmask, int32[ceil(vocab_size / 32)]; bits past the vocabulary are 0."""
    padded = np.zeros(bitmask_words(len(allowed)) * 32, np.bool_)
    padded[: len(allowed)] = allowed
    return np.packbits(padded, bitorder="little").view("<i4").astype(np.int32, copy=False)


def unpack_bits(words: NDArray[np.int32], vocab_size: int) -> NDArray[np.bool_]:
    """Unpack a token bitmask, int32[ceil(vocab_size / 32)], to bool[vocab_size]."""
    data = words.astype("<i4", copy=False).view(np.uint8)
    return np.unpackbits(data, count=vocab_size, bitorder="little").view(np.bool_)


# A function, the offset of an instruction in its bytecode, and the globals of its module. No frame, which would keep
# the variables of the call; and a tuple, because it is made at each edit.
CallSite: TypeAlias = "tuple[CodeType, int, dict[str, Any]]"
# Kind, token ids (or words of a bitmask), values of a BIAS.
Edit: TypeAlias = "tuple[EditKind, NDArray[Any], NDArray[np.float32] | None]"


class RowEdits:
    """Collects the edits of one row, in the order of its processors.

    Arrays of ids are kept, not copied: do not write to them before the step has ended.
    """

    __slots__ = ("_edits", "_events", "_sites")

    def __init__(self) -> None:
        self._edits: list[Edit] = []
        self._events: list[RowEvent] | None = None
        self._sites: dict[int, CallSite] = {}  # of the edits with ids to check, by their index

    def __bool__(self) -> bool:
        return bool(self._edits)

    def __iter__(self) -> Iterator[Edit]:
        return iter(self._edits)

    def deny(self, token_ids: ArrayLike | torch.Tensor) -> None:
        """Set the logits of these ids, int[n], to -inf."""
        ids = _ids(token_ids)
        if ids.size:
            self._sites[len(self._edits)] = _call_site()
            self._edits.append((EditKind.DENY, ids, None))

    def allow(self, token_ids: ArrayLike | torch.Tensor) -> None:
        """Set the logits of all ids but these, int[n], to -inf."""
        ids = _ids(token_ids)
        self._sites[len(self._edits)] = _call_site()
        self._edits.append((EditKind.ALLOW, ids, None))

    def force(self, token_id: int) -> None:
        """Set all logits to -inf, and the logit of this id to 0.0. Discards earlier edits of the row.

        Raises:
            InvalidArgument: `token_id` is not an integer.
        """
        try:
            forced = operator.index(token_id)
        except TypeError:
            raise InvalidArgument(f"force: pass one token id, an integer, not {type(token_id).__name__}") from None
        self._sites = {0: _call_site()}
        self._edits = [(EditKind.FORCE, _ids([forced]), None)]

    def bias(self, token_ids: ArrayLike | torch.Tensor, values: ArrayLike | torch.Tensor) -> None:
        """Add finite values, float[n] or one for all, to the logits of these ids, int[n]; repeated ids add up.

        Raises:
            InvalidArgument: the values are not finite numbers, or not as many as the ids.
        """
        ids = _ids(token_ids)
        try:
            added = np.asarray(tensors.on_host(values), np.float32)
        except (TypeError, ValueError):
            raise InvalidArgument("bias: values must be numbers: pass one for each id, or one number for all") from None
        if not added.ndim:
            added = np.broadcast_to(added, ids.shape)
        elif added.size != ids.size:
            raise InvalidArgument(
                f"bias: {ids.size} ids and {added.size} values; pass one value for each id, or one number for all"
            )
        added = added.reshape(-1)
        if not np.isfinite(added).all():
            raise InvalidArgument("bias: values must be finite; to forbid an id, deny it")
        if ids.size:
            self._sites[len(self._edits)] = _call_site()
            self._edits.append((EditKind.BIAS, ids, added))

    def bitmask(self, words: NDArray[np.int32]) -> None:
        """Set logits to -inf where the bit is 0. The bit of id i is bit i % 32 (LSB first) of word i // 32.

        Args:
            words: int32[ceil(vocab_size / 32)], copied.
        """
        self._sites[len(self._edits)] = _call_site()
        self._edits.append((EditKind.BITMASK, np.array(words, np.int32).reshape(-1), None))

    def event(self, name: str, /, **values: int | str) -> None:
        """Report to the caller of the request that something happened at this row; see `Report`.

        It changes no logits. At most 4 events of a processor are kept for a row; further ones are only counted. Report
        what follows from the history alone: a row is computed again after a reconnect or a rejected draft.

        Args:
            name: such as "budget_hit": a lowercase ASCII letter, then lowercase letters, digits and underscores, 32
                characters at most.
            values: at most 4 details with such names: integers of 53 bits, or text of at most 64 characters.

        Raises:
            InvalidArgument: the name or a value is another one.
        """
        event = make_event(name, values)
        if self._events is None:
            self._events = []
        if len(self._events) < MAX_ROW_EVENTS:
            self._events.append(event)
        else:
            self.add_event(RowEvent("", b"", 1))

    def add_event(self, event: RowEvent) -> None:
        """Append an event without a check. Entries that only count are added up."""
        events = self._events = self._events or []
        if event.name or not events or events[-1].name:
            events.append(event)
        else:
            events[-1] = event._replace(left_out=events[-1].left_out + event.left_out)

    @property
    def events(self) -> Sequence[RowEvent]:
        """The events of the row. Edits that discard others, such as `force`, do not discard them."""
        return self._events or ()

    def say(self, kind: EditKind, ids: NDArray[Any], values: NDArray[np.float32] | None) -> None:
        """Append one edit without checks: ids int[n], and for a BIAS its values float32[n]."""
        self._edits.append((kind, ids, values))

    def extend(self, later: RowEdits) -> None:
        """Append the edits of later processors of the chain."""
        if later._edits and later._edits[0][0] is EditKind.FORCE:
            self._edits = list(later._edits)
            self._sites = dict(later._sites)
        else:
            if later._sites:
                begin = len(self._edits)
                self._sites.update((begin + index, site) for index, site in later._sites.items())
            self._edits += later._edits

    def exempt(self, token_id: int) -> None:
        """Change the edits so that they leave the logit of this id as it is. A FORCE stays."""
        kept: list[Edit] = []
        for kind, ids, values in self._edits:
            others = ids != token_id
            if kind is EditKind.BITMASK and token_id // 32 < ids.size:
                words = ids.copy()
                words.view(np.uint32)[token_id // 32] |= np.uint32(1 << token_id % 32)
                kept.append((kind, words, values))
            elif kind is EditKind.ALLOW:
                kept.append((kind, np.append(ids[others], token_id), values))
            elif kind in (EditKind.FORCE, EditKind.BITMASK) or others.all():
                kept.append((kind, ids, values))
            elif others.any():
                kept.append((kind, ids[others], None if values is None else values[others]))
        if len(kept) < len(self._edits):
            self._sites = {}
        self._edits = kept

    def check(self, vocab_size: int) -> None:
        """Check every id and mask against the vocabulary.

        Raises:
            InvalidArgument: an id is not in [0, vocab_size).
            InvalidArgument: a bitmask does not have ceil(vocab_size / 32) words.

        The traceback of the error ends in the processor's code, at the call that made the edit.
        """
        for index, (kind, ids, _) in enumerate(self._edits):
            try:
                check_edit(kind, ids, vocab_size)
            except InvalidArgument as error:
                if index in self._sites:
                    error.remote_traceback = _traceback_at(self._sites[index], error)
                raise

    def denies_all(self, vocab_size: int) -> bool:
        """Whether these edits leave no id allowed. Reads only the edits, no logits."""
        denied = 0
        for kind, ids, _ in self._edits:
            if kind is EditKind.DENY:
                denied += ids.size
            elif kind is not EditKind.BIAS:
                break
        else:
            if denied < vocab_size:
                return False
        if len(self._edits) == 1 and self._edits[0][0] in (EditKind.FORCE, EditKind.ALLOW):
            return not self._edits[0][1].size
        lists = [ids for kind, ids, _ in self._edits if kind in (EditKind.FORCE, EditKind.ALLOW)]
        if lists:
            return not self._left_of(min(lists, key=np.size)).size
        allowed = np.ones(vocab_size, np.bool_)
        for kind, ids, _ in self._edits:
            if kind is EditKind.DENY:
                allowed[ids] = False
            elif kind is EditKind.BITMASK:
                allowed &= unpack_bits(ids, vocab_size)
        return not allowed.any()

    def _left_of(self, ids: NDArray[Any]) -> NDArray[Any]:
        """The ids, of these, that all edits allow. Takes the time and memory of the edits, not of the vocabulary."""
        for kind, other, _ in self._edits:
            if kind is EditKind.DENY:
                ids = np.setdiff1d(ids, other)
            elif kind is EditKind.BITMASK:
                ids = ids[other[ids // 32] >> ids % 32 & 1 == 1]
            elif kind is not EditKind.BIAS:
                ids = np.intersect1d(ids, other)
        return ids


def smallest(edit: Edit, vocab_size: int) -> Edit:
    """Return the edit in its smaller form: many ids become a bitmask. Raises InvalidArgument, like `RowEdits.check`."""
    kind, ids, _ = edit
    if kind not in (EditKind.DENY, EditKind.ALLOW) or ids.size <= bitmask_words(vocab_size):
        return edit
    check_edit(kind, ids, vocab_size)
    allowed = np.full(vocab_size, kind is EditKind.DENY)
    allowed[ids] = kind is EditKind.ALLOW
    return EditKind.BITMASK, pack_bits(allowed), None


def _ids(token_ids: ArrayLike | torch.Tensor) -> NDArray[Any]:
    on_host = token_ids if type(token_ids) in tensors.NOT_TORCH else tensors.on_host(token_ids)
    ids = np.asarray(on_host).reshape(-1)
    if ids.dtype.kind not in "iu":
        if ids.size:
            kind = "text" if ids.dtype.kind in "US" else ids.dtype
            raise InvalidArgument(f"token ids must be integers, not {kind}")
        return ids.astype(np.int32)
    # numpy promotes a mix of uint64 and signed ids to float64.
    return ids.astype(np.int64) if ids.dtype == np.uint64 else ids


def within(ids: NDArray[Any], vocab_size: int) -> bool:
    """Whether all ids are in [0, vocab_size)."""
    return not ids.size or bool(np.minimum.reduce(ids) >= 0 and np.maximum.reduce(ids) < vocab_size)


def check_edit(kind: EditKind, ids: NDArray[Any], vocab_size: int) -> None:
    """Check the ids, or the words, of one edit. Raises the errors of `RowEdits.check`."""
    if kind is EditKind.BITMASK:
        if ids.size != bitmask_words(vocab_size):
            raise InvalidArgument(
                f"BITMASK of {ids.size} words; a vocabulary of {vocab_size} needs {bitmask_words(vocab_size)}"
            )
    elif not within(ids, vocab_size):
        wrong = ids[(ids < 0) | (ids >= vocab_size)][0]
        raise InvalidArgument(f"{kind.name} of token id {wrong}: ids must lie in [0, {vocab_size})")


def _call_site() -> CallSite:
    """The line that called the caller of this function."""
    frame = sys._getframe(2)
    return frame.f_code, frame.f_lasti, frame.f_globals


def _traceback_at(site: CallSite, error: BaseException) -> str:
    """Format as the traceback of an error that was raised there; "" if the code is logitport's own."""
    code, instruction, module = site
    if str(module.get("__package__") or "").partition(".")[0] in OUR_PACKAGES:
        return ""
    lines = (line for begin, end, line in code.co_lines() if line is not None and begin <= instruction < end)
    frame = traceback.FrameSummary(code.co_filename, next(lines, code.co_firstlineno), code.co_name)
    stack = traceback.StackSummary.from_list([frame]).format()
    raised = traceback.format_exception_only(type(error), error)
    return "".join(["Traceback (most recent call last):\n", *stack, *raised])
