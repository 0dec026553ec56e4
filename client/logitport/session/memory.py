"""Kinds of memory that an engine shares with its server."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from logitport.core import tensors

if TYPE_CHECKING:
    from collections.abc import Sequence

    from logitport.session.channel import FrameChannel


class Memory(ABC):
    """A kind of memory that the server reaches, too. One object has one region at a time.

    Attributes:
        name: "host" or "device".
    """

    name: str

    @abstractmethod
    def open(self, size_bytes: int, replaces: int) -> tuple[int, Any] | None:
        """A new region in place of `replaces` (0: of none): its id, and its bytes; None if the server reaches none.

        Raises:
            LimitExceeded: more than the server's max_region_bytes.
        """

    @abstractmethod
    def ordinary(self, size_bytes: int) -> Any:
        """As many bytes where the engine has its logits, which the server does not reach."""

    @abstractmethod
    def write(self, staged: Any, rows: Any) -> bool:
        """Copy rows into the region, if they are not there (`staged` is None), for the server; False if that fails."""

    def read(self, logits: Any, wanted: Sequence[int], staged: Any) -> None:
        """Copy what the server left in the region over the wanted rows, if these are not there themselves."""
        if staged is not None:
            tensors.put_rows(logits, wanted, staged)

    @abstractmethod
    def refuse(self) -> None:
        """The region is of no use: to CUDA, or because the server will not work on it."""


class HostMemory(Memory):
    """Regions that the server makes, and passes over a local transport."""

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
        """It is the logits that are wrong: nothing that could be done otherwise."""
