"""The transfer of logits to the server, and of the processed rows back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from logitport.core import tensors
from logitport.errors import InvalidArgument, LimitExceeded
from logitport.session.logits.engine_memory import Memory
from logitport.session.logits.logits_buffer import LogitsBuffer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from logitport.session.connection.frame_channel import FrameChannel
    from logitport_proto import common_pb2


class Placement(NamedTuple):
    """Where `LogitsTransfer.put` has put logits.

    Attributes:
        buffer: the buffer that holds them; None if they were sent inline.
        staged: the copy in the buffer; None if the logits themselves are in the buffer.
    """

    buffer: LogitsBuffer | None
    staged: Any


class LogitsTransfer:
    """Makes logits available to the server, in the fastest way available, and fetches the processed rows.

    Attributes:
        datatype: of the logits: "FP32", "FP16" or "BF16".
        buffer: the buffer behind `Session.logits_buffer`.
        memory: where the server last processed logits: "device", "host" or "inline"; "" before the first time.
    """

    def __init__(
        self, channel: FrameChannel, vocab_size: int, datatype: str, *, with_torch: bool, device: str = "cpu"
    ) -> None:
        self._channel = channel
        self._vocab_size = vocab_size
        self.datatype = datatype
        self.memory = ""
        self._staging: dict[object, list[LogitsBuffer]] = {}
        self.buffer = self._buffers(device, with_torch=with_torch)[0]

    def put(self, logits: Any, indices: Sequence[int], message: common_pb2.Tensor) -> Placement:
        """Make the message refer to these rows of the logits, or hold them.

        Rows in the buffer stay there. Others are copied to shared memory, on their GPU or on the host. Without shared
        memory, or without enough of it, they are sent inline.
        """
        buffer = self.buffer
        if buffer.locate(logits, message):
            if buffer.memory.write(None, logits):
                return self._placed(buffer, None)
            buffer.refuse()
            message.Clear()
        rows = tensors.take_rows(logits, indices)
        for staging in self._stagings(rows):
            try:
                staged = staging.shared_rows(len(rows))
            except LimitExceeded:
                continue
            if staged is None:
                continue
            if staging.memory.write(staged, rows):
                staging.locate(staged, message)
                return self._placed(staging, staged)
            staging.refuse()
        tensors.write(message, rows)
        return self._placed(None, None)

    def fetch(self, logits: Any, indices: Sequence[int], placed: Placement, message: common_pb2.Tensor) -> None:
        """Copy the processed rows to the logits, from where `put` put them. Raises InvalidArgument if malformed."""
        if placed.buffer is not None:
            placed.buffer.memory.read(logits, indices, placed.staged)
            return
        shape = [len(indices), self._vocab_size]
        if message.datatype != self.datatype or list(message.shape) != shape:
            raise InvalidArgument(
                f"the server returned {message.datatype}{list(message.shape)} instead of {self.datatype}{shape}"
            )
        tensors.put_rows(logits, indices, tensors.like(message, logits))

    @staticmethod
    def refuse(placed: Placement) -> bool:
        """Handle valid logits that the server refused. Returns whether to send them again from other memory."""
        if placed.buffer is None or placed.buffer.memory.name != "device":
            return False
        placed.buffer.refuse()
        return True

    def _placed(self, buffer: LogitsBuffer | None, staged: Any) -> Placement:
        self.memory = "inline" if buffer is None else buffer.memory.name
        return Placement(buffer, staged)

    def _stagings(self, rows: Any) -> list[LogitsBuffer]:
        """Return buffers for copies of these rows, the fastest first."""
        if not self._channel.transport.shares_memory:
            return []
        device = rows.device if tensors.is_torch(rows) else None
        if device not in self._staging:
            self._staging[device] = self._buffers(device or "cpu", with_torch=device is not None)
        return self._staging[device]

    def _buffers(self, device: object, *, with_torch: bool) -> list[LogitsBuffer]:
        return [
            LogitsBuffer(self._channel, memory, self._vocab_size, self.datatype, with_torch=with_torch)
            for memory in memories(self._channel, device if with_torch else "cpu")
        ]


def memories(channel: FrameChannel, device: object) -> list[Memory]:
    """List the kinds of memory for logits on a device ("cuda:0", or a torch.device), the fastest first."""
    if not str(device).startswith("cuda"):
        return [Memory(channel)]
    from logitport.session.logits import device_memory  # imports torch

    return device_memory.memories(channel, str(device))
