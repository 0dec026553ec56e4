"""Buffers for logits that the server processes."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from logitport.core import tensors
from logitport.errors import InvalidArgument

if TYPE_CHECKING:
    from logitport.session.connection.frame_channel import FrameChannel
    from logitport.session.logits.engine_memory import Memory
    from logitport_proto import common_pb2

    # First and last address of a block of memory, and a weak reference to it.
    _Span = tuple[int, int, weakref.ref[Any]]


class LogitsBuffer:
    """Rows of logits that grow on demand, in a region if the server can access such memory.

    Attributes:
        memory: the kind of memory.
        is_used: whether logits have been in memory that is shared with the server.
    """

    def __init__(
        self, channel: FrameChannel, memory: Memory, vocab_size: int, datatype: str, *, with_torch: bool
    ) -> None:
        self.memory = memory
        self.is_used = False
        self._channel = channel
        self._vocab_size = vocab_size
        self._datatype = datatype
        self._with_torch = with_torch
        self._region_id = 0  # 0: the server cannot access the present memory
        self._data: Any = None
        self._connection = 0
        self._logits: Any = None
        self._retirements = 0
        self._admissions = 0
        # Retired memory must not be used any more. Replaced memory may still be lent to a worker by the server, so it
        # may be used until the next request is added; then it is retired.
        self._retired: list[_Span] = []
        self._replaced: list[_Span] = []

    def rows(self, rows: int) -> Any:
        """Return the first rows of the buffer, float[rows, vocab_size]. Raises LimitExceeded."""
        if self._lacks(rows) and not self._open(rows):
            self._logits = self._view(self.memory.ordinary(self._size_bytes(rows)), rows)
        return self._logits[:rows]

    def shared_rows(self, rows: int) -> Any:
        """Return the same as `rows`, or None if the server cannot access that memory."""
        if (self._lacks(rows) or not self._region_id) and not self._open(rows):
            return None
        return self._logits[:rows]

    def locate(self, logits: Any, message: common_pb2.Tensor) -> bool:
        """Make the message refer to these logits, if they are consecutive rows of this region."""
        self._notice_retirement()
        if not self._region_id or self._connection != self._channel.connections:
            return False
        if tensors.is_torch(logits) != self._with_torch:
            return False
        byte_offset = tensors.byte_offset(logits, self._logits)
        if byte_offset is None:
            return False
        message.datatype = self._datatype
        message.shape[:] = list(logits.shape)
        message.region.region_id = self._region_id
        message.region.byte_offset = byte_offset
        return True

    def has_retired(self) -> bool:
        """Whether there is retired memory. Only a buffer that `is_used` retires memory."""
        self._notice_retirement()
        return bool(self._retired)

    def check(self, logits: Any) -> None:
        """Raise InvalidArgument for logits in retired memory."""
        self._notice_retirement()
        if not self._retired:
            return
        self._retired = [entry for entry in self._retired if entry[2]() is not None]
        address = tensors.address(logits)
        if any(first <= address <= last for first, last, _ in self._retired):
            raise InvalidArgument(
                "these logits are in a retired buffer: a request was added, and a processor that had exclusive use of "
                "the buffer can still write to it; call logits_buffer again, and copy the logits there"
            )

    def request_added(self) -> None:
        """Retire all replaced memory: a worker that it is lent to could overwrite the new request's logits."""
        self._retired += self._replaced
        self._replaced = []

    def refuse(self) -> None:
        """Use the region as ordinary memory from now on, because it cannot be shared."""
        self._region_id = 0
        self.memory.refuse()

    def _notice_retirement(self) -> None:
        """Drop the region if the server has retired it. Retire replaced memory if requests were admitted since."""
        if self._admissions != self._channel.admissions:
            self._admissions = self._channel.admissions
            self.request_added()
        if self._retirements == self._channel.retirements:
            return
        self._retirements = self._channel.retirements
        if self._region_id and self.memory.name == "host" and self._connection == self._channel.connections:
            self._retired.append(self._span())
            self._region_id, self._logits, self._data = 0, None, None

    def _lacks(self, rows: int) -> bool:
        self._notice_retirement()
        return self._logits is None or len(self._logits) < rows or self._connection != self._channel.connections

    def _open(self, rows: int) -> bool:
        if self._connection != self._channel.connections:
            self._connection, self._region_id = self._channel.connections, 0
        opened = self.memory.open(self._size_bytes(rows), self._region_id)
        self._region_id = 0
        if opened is not None:
            if self._data is not None and self.memory.name == "host":
                self._replaced = [*(span for span in self._replaced if span[2]() is not None), self._span()]
            self.is_used = True
            self._region_id, self._data = opened
            self._logits = self._view(self._data, rows)
        return opened is not None

    def _span(self) -> _Span:
        first = tensors.address(self._logits)
        return first, first + self._size_bytes(len(self._logits)) - 1, weakref.ref(self._data)

    def _size_bytes(self, rows: int) -> int:
        return max(1, rows) * self._vocab_size * tensors.DATATYPES[self._datatype][1]

    def _view(self, data: Any, rows: int) -> Any:
        return tensors.view(data, self._datatype, (rows, self._vocab_size), with_torch=self._with_torch)
