"""Where logits lie while the server works on them."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, NamedTuple

from logitport.core import tensors
from logitport.errors import InvalidLogits, LimitExceeded
from logitport.session.memory import HostMemory, Memory

if TYPE_CHECKING:
    from collections.abc import Sequence

    from logitport.session.channel import FrameChannel
    from logitport_proto import common_pb2

    # First and last address of memory, and the memory, as long as anybody holds it.
    _Span = tuple[int, int, weakref.ref[Any]]


class LogitsBuffer:
    """Rows of logits that grow on demand, in a region if the server reaches such memory.

    Attributes:
        memory: the kind of memory.
    """

    def __init__(
        self, channel: FrameChannel, memory: Memory, vocab_size: int, datatype: str, *, with_torch: bool
    ) -> None:
        self.memory = memory
        self._channel = channel
        self._vocab_size = vocab_size
        self._datatype = datatype
        self._with_torch = with_torch
        self._region_id = 0
        self._octets: Any = None
        self._connection = 0
        self._logits: Any = None
        self._retirements = 0
        # Memory that must not be used any more; and memory that other memory has replaced, which the server may have
        # lent: it is good as long as nobody comes.
        self._retired: list[_Span] = []
        self._replaced: list[_Span] = []

    def rows(self, rows: int) -> Any:
        """float[rows, vocab_size]: the first rows of the buffer. Raises LimitExceeded."""
        if self._lacks(rows) and not self._open(rows):
            self._logits = self._view(self.memory.ordinary(self._size_bytes(rows)), rows)
        return self._logits[:rows]

    def shared_rows(self, rows: int) -> Any:
        """As `rows`, but None if the server does not reach them."""
        if (self._lacks(rows) or not self._region_id) and not self._open(rows):
            return None
        return self._logits[:rows]

    def locate(self, logits: Any, message: common_pb2.Tensor) -> bool:
        """Make the message name these logits, if they are rows of this region that lie one after the other."""
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

    def check(self, logits: Any) -> None:
        """Raises InvalidLogits for logits in memory that is retired."""
        self._notice_retirement()
        if not self._retired:
            return
        self._retired = [entry for entry in self._retired if entry[2]() is not None]
        address = tensors.address(logits)
        if any(first <= address <= last for first, last, _ in self._retired):
            raise InvalidLogits(
                "these logits lie in a buffer that is not good any more: a request was added, and a processor that had "
                "the buffer to itself can still write to it; call logits_buffer again, and copy the logits there"
            )

    def request_added(self) -> None:
        """Somebody has come for whom memory that was replaced is no good."""
        self._retired += self._replaced
        self._replaced = []

    def refuse(self) -> None:
        """The region is of no use: it is ordinary memory from now on."""
        self._region_id = 0
        self.memory.refuse()

    def _notice_retirement(self) -> None:
        """Let go of a region that the server has retired."""
        if self._retirements == self._channel.retirements:
            return
        self._retirements = self._channel.retirements
        if self._region_id and isinstance(self.memory, HostMemory) and self._connection == self._channel.connections:
            self._retired.append(self._span())
            self._region_id, self._logits, self._octets = 0, None, None

    def _lacks(self, rows: int) -> bool:
        self._notice_retirement()
        return self._logits is None or len(self._logits) < rows or self._connection != self._channel.connections

    def _open(self, rows: int) -> bool:
        if self._connection != self._channel.connections:
            self._connection, self._region_id = self._channel.connections, 0
        opened = self.memory.open(self._size_bytes(rows), self._region_id)
        self._region_id = 0
        if opened is not None:
            if self._octets is not None and isinstance(self.memory, HostMemory):
                self._replaced = [*(span for span in self._replaced if span[2]() is not None), self._span()]
            self._region_id, self._octets = opened
            self._logits = self._view(self._octets, rows)
        return opened is not None

    def _span(self) -> _Span:
        first = tensors.address(self._logits)
        return first, first + self._size_bytes(len(self._logits)) - 1, weakref.ref(self._octets)

    def _size_bytes(self, rows: int) -> int:
        return max(1, rows) * self._vocab_size * tensors.DATATYPES[self._datatype][1]

    def _view(self, octets: Any, rows: int) -> Any:
        return tensors.view(octets, self._datatype, (rows, self._vocab_size), with_torch=self._with_torch)


class Placement(NamedTuple):
    """Where `LogitsTransfer.put` has put logits: in a buffer, or inline if that is None.

    Attributes:
        buffer: where they are.
        staged: the copy of them there; None if they are there themselves.
    """

    buffer: LogitsBuffer | None
    staged: Any


class LogitsTransfer:
    """Puts logits where the server finds them, the cheapest way there is, and fetches what became of them.

    Attributes:
        datatype: of the logits: "FP32", "FP16" or "BF16".
        buffer: what `Session.logits_buffer` hands out.
        memory: where logits were when the server worked on them last: "device", "host" or "inline"; "" before.
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

    def check(self, logits: Any) -> None:
        """Raises InvalidLogits for logits in memory that must not be used any more."""
        self.buffer.check(logits)

    def put(self, logits: Any, wanted: Sequence[int], message: common_pb2.Tensor) -> Placement:
        """Make the message name or hold the wanted rows.

        Rows that lie in the buffer stay there. Others are copied into shared memory, of their GPU or of the host.
        Where there is none, or not enough, they travel inline.
        """
        if self.buffer.locate(logits, message):
            if self.buffer.memory.write(None, logits):
                return self._placed(self.buffer, None)
            self.buffer.refuse()
            message.Clear()
        rows = tensors.take_rows(logits, wanted)
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

    @staticmethod
    def fetch(logits: Any, wanted: Sequence[int], placed: Placement, message: common_pb2.Tensor) -> None:
        """Bring the wanted rows home, from where `put` put them. Raises InvalidLogits if they come malformed."""
        if placed.buffer is not None:
            placed.buffer.memory.read(logits, wanted, placed.staged)
        elif message.datatype:
            tensors.put_rows(logits, wanted, tensors.like(message, logits))

    @staticmethod
    def refuse(placed: Placement) -> bool:
        """The server refused logits that are right: whether it may take them from elsewhere."""
        if placed.buffer is None or placed.buffer.memory.name != "device":
            return False
        placed.buffer.refuse()
        return True

    def _placed(self, buffer: LogitsBuffer | None, staged: Any) -> Placement:
        self.memory = "inline" if buffer is None else buffer.memory.name
        return Placement(buffer, staged)

    def _stagings(self, rows: Any) -> list[LogitsBuffer]:
        """Buffers for copies of these rows, the fastest first."""
        if not self._channel.shares_memory:
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
    """The kinds of memory for logits on a device ("cuda:0", or a torch.device), the fastest first."""
    if not str(device).startswith("cuda"):
        return [HostMemory(channel)]
    from logitport.session import device_memory  # imports torch

    return device_memory.memories(channel, str(device))
