"""Where logits lie while the server works on them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from logitport import tensors
from logitport.errors import LimitExceeded

if TYPE_CHECKING:
    from collections.abc import Sequence

    from logitport.conversation import Conversation
    from logitport_proto import common_pb2


class LogitsBuffer:
    """Rows of logits that grow on demand, in a region if the session's transport shares memory."""

    def __init__(self, conversation: Conversation, vocab_size: int, datatype: str, *, with_torch: bool) -> None:
        self._conversation = conversation
        self._vocab_size = vocab_size
        self._datatype = datatype
        self._with_torch = with_torch
        self._region_id = 0
        self._connection = 0
        self._logits: Any = None

    def rows(self, rows: int) -> Any:
        """float[rows, vocab_size]: the first rows of the buffer. Raises LimitExceeded."""
        if self._logits is None or len(self._logits) < rows or self._connection != self._conversation.connections:
            self._grow(rows)
        return self._logits[:rows]

    def locate(self, logits: Any, message: common_pb2.Tensor) -> bool:
        """Make the message name these logits, if they are rows of this region that lie one after the other."""
        if not self._region_id or self._connection != self._conversation.connections:
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

    def _grow(self, rows: int) -> None:
        size_bytes = max(1, rows) * self._vocab_size * tensors.DATATYPES[self._datatype][1]
        if self._connection != self._conversation.connections:
            self._connection, self._region_id = self._conversation.connections, 0
        opened = self._conversation.open_region(size_bytes, self._region_id)
        self._region_id, memory = opened or (0, bytearray(size_bytes))
        self._logits = tensors.view(memory, self._datatype, (rows, self._vocab_size), with_torch=self._with_torch)


class LogitsDelivery:
    """Puts logits where the server finds them, the cheapest way there is, and fetches what became of them.

    Attributes:
        datatype: of the logits: "FP32", "FP16" or "BF16".
        buffer: what `Session.logits_buffer` hands out.
    """

    def __init__(self, conversation: Conversation, vocab_size: int, datatype: str, *, with_torch: bool) -> None:
        self._conversation = conversation
        self.datatype = datatype
        self._shape = (vocab_size, datatype)
        self._staging: dict[bool, LogitsBuffer] = {}
        self.buffer = LogitsBuffer(conversation, *self._shape, with_torch=with_torch)

    def put(self, logits: Any, wanted: Sequence[int], message: common_pb2.Tensor) -> Any:
        """Make the message name or hold the wanted rows; returns the copy of them in shared memory, if there is one.

        Rows that lie in the buffer stay there. Others are copied into shared memory. Where there is none, or not
        enough, they travel inline.
        """
        if self.buffer.locate(logits, message):
            return None
        rows = tensors.take_rows(logits, wanted)
        if self._conversation.shares_memory:
            with_torch = tensors.is_torch(rows)
            staging = self._staging.get(with_torch)
            if staging is None:
                staging = LogitsBuffer(self._conversation, *self._shape, with_torch=with_torch)
                self._staging[with_torch] = staging
            try:
                staged = staging.rows(len(rows))
            except LimitExceeded:
                pass
            else:
                staged[...] = rows
                staging.locate(staged, message)
                return staged
        tensors.write(message, rows)
        return None

    @staticmethod
    def fetch(logits: Any, wanted: Sequence[int], staged: Any, message: common_pb2.Tensor) -> None:
        """Bring the wanted rows home, from where `put` put them. Raises InvalidLogits if they come malformed."""
        if staged is not None:
            tensors.put_rows(logits, wanted, staged)
        elif message.datatype:
            tensors.put_rows(logits, wanted, tensors.like(message, logits))
