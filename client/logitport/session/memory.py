"""Kinds of memory that an engine shares with its server."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from logitport.core import tensors

if TYPE_CHECKING:
    from collections.abc import Sequence

    from logitport.session.channel import FrameChannel


class Memory(ABC):
    """A kind of memory that the server can access, too. One object has one region at a time.

    Attributes:
        name: "host" or "device".
    """

    name: str

    @abstractmethod
    def open(self, size_bytes: int, replaces: int) -> tuple[int, Any] | None:
        """Open a region that replaces region `replaces` (0: none). Returns id and bytes; None if it cannot be shared.

        Raises:
            LimitExceeded: more than the server's max_region_bytes.
        """

    @abstractmethod
    def ordinary(self, size_bytes: int) -> Any:
        """Allocate ordinary memory on the engine's device, which the server cannot access."""

    @abstractmethod
    def write(self, staged: Any, rows: Any) -> bool:
        """Copy rows to `staged`, their place in the region; None if they are there already. False if that fails."""

    def read(self, logits: Any, indices: Sequence[int], staged: Any) -> None:
        """Copy the processed rows from `staged` to these rows of the logits; None if they are the logits themselves."""
        if staged is not None:
            tensors.put_rows(logits, indices, staged)

    @abstractmethod
    def refuse(self) -> None:
        """Stop using the region, because CUDA failed or the server refused it."""


class HostMemory(Memory):
    """Host memory: regions that the server creates, and passes over a local transport."""

    name = "host"

    def __init__(self, channel: FrameChannel) -> None:
        self._channel = channel

    def open(self, size_bytes: int, replaces: int) -> tuple[int, Any] | None:
        return self._channel.open_region(size_bytes, replaces)

    def ordinary(self, size_bytes: int) -> bytearray:
        return bytearray(size_bytes)

    def write(self, staged: Any, rows: Any) -> bool:
        if staged is not None:
            staged[...] = rows
        return True

    def refuse(self) -> None:
        """Do nothing: the server never refuses host memory, so the fault is in the logits."""
