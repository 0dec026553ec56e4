"""Logits in memory that a session shares with its server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from logitport import tensors

if TYPE_CHECKING:
    from logitport.session import Session
    from logitport_proto import common_pb2


class LogitsBuffer:
    """Rows of logits that grow on demand, in a region if the session's transport shares memory."""

    def __init__(self, session: Session, *, with_torch: bool) -> None:
        self._session = session
        self._with_torch = with_torch
        self._region_id = 0
        self._logits: Any = None

    def rows(self, rows: int) -> Any:
        """float[rows, vocab_size]: the first rows of the buffer. Raises LimitExceeded."""
        if self._logits is None or len(self._logits) < rows:
            self._grow(rows)
        return self._logits[:rows]

    def locate(self, logits: Any, message: common_pb2.Tensor) -> bool:
        """Make the message name these logits, if they are rows of this region that lie one after the other."""
        if not self._region_id or tensors.is_torch(logits) != self._with_torch:
            return False
        byte_offset = tensors.byte_offset(logits, self._logits)
        if byte_offset is None:
            return False
        message.datatype = self._session.datatype
        message.shape[:] = list(logits.shape)
        message.region.region_id = self._region_id
        message.region.byte_offset = byte_offset
        return True

    def _grow(self, rows: int) -> None:
        session = self._session
        shape = (rows, session.vocab_size)
        size_bytes = max(1, rows) * session.vocab_size * tensors.DATATYPES[session.datatype][1]
        opened = session.open_region(size_bytes, self._region_id)
        self._region_id, memory = opened or (0, bytearray(size_bytes))
        self._logits = tensors.view(memory, session.datatype, shape, with_torch=self._with_torch)
