"""The token history of one request."""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING, Any, Union

import numpy as np

from logitport.core import tensors
from logitport.core.compiled import core
from logitport.core.memory_account import PythonMemoryCharge
from logitport.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch
    from numpy.typing import NDArray

    from logitport.core.memory_account import PythonMemoryAccount

    # Ids, [n]; a tensor may be on any device.
    TokenIds = Union[Sequence[int], NDArray[np.integer[Any]], torch.Tensor]

_SMALLEST_CAPACITY = 64
_INT32_MIN, _INT32_MAX = -(2**31), 2**31 - 1


class PythonHistory:
    """Prompt and output ids of one request, in an array that grows, and may be cut back, at its end.

    Both ends of a session keep one for each request, and compare checksums to detect differences.

    Attributes:
        length: number of ids; read it, do not write it.
        prompt_length: number of ids of the prompt.
        draft_tokens: number of draft tokens at the end, which the engine may still reject.
        rows_applied: number of rows of logits of which an id was sampled, or is sampled next; see `add_rows`.
    """

    __slots__ = (
        *("_buffer", "_charge", "_crc", "_crc_length", "_ids", "_open_rows", "_sampled_rows"),
        *("draft_tokens", "length", "prompt_length"),
    )

    def __init__(self, prompt_token_ids: TokenIds = (), output_token_ids: TokenIds = ()) -> None:
        prompt, output = int32_ids(prompt_token_ids), int32_ids(output_token_ids)
        self.prompt_length = len(prompt)
        self.length = self.prompt_length + len(output)
        self.draft_tokens = 0
        self._buffer = np.empty(max(_SMALLEST_CAPACITY, self.length + self.length // 8), np.int32)
        self._buffer[: self.prompt_length] = prompt
        self._buffer[self.prompt_length : self.length] = output
        self._ids = self._buffer.data  # reads and writes of single ids are faster through a memoryview
        # The checksum of the first ids, and how many these are.
        self._crc = self._crc_length = 0
        # Rows of which an id was sampled, and rows of the last step.
        self._sampled_rows = self._open_rows = 0
        self._charge: PythonMemoryCharge | None = None

    def __len__(self) -> int:
        return self.length

    @property
    def token_ids(self) -> NDArray[np.int32]:
        """Ids of the prompt, then of the output, int32[len(self)]. A view: do not write to it, and do not keep it."""
        return self._buffer[: self.length]

    @property
    def prompt_token_ids(self) -> NDArray[np.int32]:
        """int32[prompt_length], a view like `token_ids`."""
        return self._buffer[: self.prompt_length]

    @property
    def output_token_ids(self) -> NDArray[np.int32]:
        """int32[len(self) - prompt_length], a view like `token_ids`."""
        return self._buffer[self.prompt_length : self.length]

    @property
    def last_output(self) -> int | None:
        """The id sampled last; None if there is no output."""
        return self._ids[self.length - 1] if self.length > self.prompt_length else None

    def at(self, position: int) -> int:
        """Return the id at a position in [0, len(self)). The position is not checked."""
        return self._ids[position]

    def append(self, token_id: int) -> None:
        """Add one output id, an integer of 32 bits."""
        length = self.length
        if length == len(self._ids):
            self._buffer = np.concatenate([self._buffer, np.empty_like(self._buffer)])
            self._ids = self._buffer.data
        self._ids[length] = token_id
        self.length = length + 1

    def extend(self, token_ids: Sequence[int]) -> None:
        """Add output ids, oldest first."""
        for token_id in token_ids:
            self.append(token_id)

    def rewind(self, length: int) -> None:
        """Cut back to `length` ids.

        Raises:
            InvalidArgument: `length` is longer than the history, or would cut into the prompt.
        """
        if not self.prompt_length <= length <= self.length:
            raise InvalidArgument(
                f"cannot rewind a history of {self.length} ids to {length}: the length must lie between "
                f"{self.prompt_length} (the prompt) and {self.length}"
            )
        cut = self.length - length - self.draft_tokens  # ids that were sampled
        self.draft_tokens = max(0, -cut)
        if cut > 0:
            self._sampled_rows = max(0, self._sampled_rows - cut)
            self._open_rows = 0
        self.length = length
        if length < self._crc_length:
            self._crc = self._crc_length = 0

    def follow(self, other: PythonHistory, prompt_length: int) -> None:
        """Become a view of another history, with a prompt of this length. Only `follow` may change a view.

        Shares its memory. Call it again after each change of the other one.

        Raises:
            InvalidArgument: the prompt would be longer than the history.
        """
        if not 0 <= prompt_length <= other.length:
            raise InvalidArgument(f"a view of {other.length} ids cannot have a prompt of {prompt_length}")
        self._buffer, self._ids = other._buffer, other._ids
        self.length, self.prompt_length, self.draft_tokens = other.length, prompt_length, other.draft_tokens
        self._crc = self._crc_length = 0

    @property
    def rows_applied(self) -> int:
        return self._sampled_rows + min(1, self._open_rows)

    def add_rows(self, sampled: int, rows: int) -> None:
        """Count the rows of a step, one and one more for each draft token.

        `sampled` ids have joined the history since the step before: so many of its rows were sampled from.
        """
        self._sampled_rows += min(sampled, self._open_rows)
        self._open_rows = rows

    def drop_rows(self) -> None:
        """Leave out the rows of the last step, because the request has failed in it."""
        self._open_rows = 0

    def cut_token_ids(self, length: int) -> NDArray[np.int32]:
        """The ids that `rewind` has cut off a history of this length, int32. They are there until the next append."""
        return self._buffer[self.length : length]

    def crc(self) -> int:
        """Compute `extend_crc` of all ids. Reads those that are new since the last call; after a rewind, all."""
        if self._crc_length < self.length:
            added = self._buffer[self._crc_length : self.length]
            self._crc = zlib.crc32(added.astype("<i4", copy=False).data, self._crc)
            self._crc_length = self.length
        return self._crc

    def begin_charge(self, account: PythonMemoryAccount, fixed: int, per_id: int, per_output_id: int) -> bool:
        """Charge the memory of the history and its states to an account; see `PythonMemoryCharge`.

        The charge ends with the history.

        Returns:
            False, with nothing charged, if the account has no room.
        """
        self._charge = None  # it may have had one
        charge = PythonMemoryCharge(account, fixed, per_id, per_output_id, self.prompt_length)
        self._charge = charge if charge.grow(self.length) else None
        return self._charge is not None

    def charge(self, length: int) -> bool:
        """Charge the memory of this length. Returns False, with nothing more charged, if the account has no room."""
        return self._charge is None or self._charge.grow(length)

    @property
    def memory_limit(self) -> int:
        """Limit of the account, in bytes; 0 without one."""
        return self._charge.account.limit if self._charge is not None else 0


def extend_crc(crc: int, token_ids: Sequence[int]) -> int:
    """Extend a checksum by ids: CRC-32 (IEEE 802.3, as in zlib) of little-endian int32; start with `crc` 0."""
    return zlib.crc32(struct.pack(f"<{len(token_ids)}i", *token_ids), crc)


def int32_ids(token_ids: TokenIds, where: str = "token ids") -> NDArray[np.int32]:
    """Convert ids to int32[n]. `where` is their name in errors.

    Raises:
        InvalidArgument: a value is no integer of 32 bits. The check is explicit because numpy may wrap larger values.
    """
    if type(token_ids) is list and not token_ids:  # the output of most new requests
        return np.empty(0, np.int32)
    try:
        ids = np.asarray(tensors.on_host(token_ids))
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidArgument(f"{where} must be integers of 32 bits ({error})") from error
    if not ids.size:
        return np.empty(0, np.int32)
    is_mask = ids.dtype.kind == "b" and hasattr(token_ids, "dtype")
    if ids.ndim != 1 or ids.dtype.kind not in "biu" or is_mask:
        raise InvalidArgument(
            f"{where} must be integers of 32 bits, [n], not {ids.dtype}{list(ids.shape)}{_advice(ids)}"
        )
    if ids.dtype == np.int32:
        return ids
    if not (ids.min() >= _INT32_MIN and ids.max() <= _INT32_MAX):
        raise InvalidArgument(f"{where} must be integers of 32 bits, but go from {ids.min()} to {ids.max()}")
    return ids.astype(np.int32)


def _advice(ids: NDArray[Any]) -> str:
    if ids.ndim == 2 and len(ids) == 1:
        return "; pass the row [0]"
    return "; pass a list of one id" if ids.ndim == 0 and ids.dtype.kind in "iu" else ""


def listed_ids(token_ids: TokenIds, where: str = "token ids") -> Sequence[int]:
    """Convert a tensor or an array of ids, [n], to a list. Other sequences are returned as they are, unchecked.

    A tensor on a GPU is copied once, not once for each id.

    Raises:
        InvalidArgument: the tensor or array has another dtype or shape.
    """
    if not hasattr(token_ids, "dtype"):
        return token_ids
    ids: list[int] = int32_ids(token_ids, where).tolist()
    return ids


def _int32_array(token_ids: TokenIds) -> NDArray[np.int32]:
    if type(token_ids) is np.ndarray and token_ids.dtype == np.int32 and token_ids.ndim == 1:
        return np.ascontiguousarray(token_ids)
    return np.ascontiguousarray(int32_ids(token_ids))


if TYPE_CHECKING or core is not None:

    class History(core.History):
        """The same in the compiled core, which updates the checksum instead of reading all ids."""

        __slots__ = ()

        def __init__(self, prompt_token_ids: TokenIds = (), output_token_ids: TokenIds = ()) -> None:
            super().__init__(_int32_array(prompt_token_ids), _int32_array(output_token_ids))

else:
    History = PythonHistory
