"""Memory that an engine shares with its server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from logitport.core import tensors

if TYPE_CHECKING:
    from collections.abc import Sequence

    from logitport.session.connection.frame_channel import FrameChannel


class Memory:
    """Memory that the server can access, too: on the host, where the server creates regions. One region at a time.

    Attributes:
        name: "host", or "device" for memory of a GPU.
    """

    name = "host"

    def __init__(self, channel: FrameChannel) -> None:
        self._channel = channel

    def open(self, size_bytes: int, replaces: int) -> tuple[int, Any] | None:
        """Open a region that replaces region `replaces` (0: none). Returns id and bytes; None if it cannot be shared.

        Raises:
            LimitExceeded: more than the server's max_region_bytes.
        """
        return self._channel.open_region(size_bytes, replaces)

    def ordinary(self, size_bytes: int) -> Any:
        """Allocate memory on the engine's device that the server cannot access."""
        return bytearray(size_bytes)

    def write(self, staged: Any, rows: Any) -> bool:
        """Copy rows to `staged`, their place in the region; None if they are there already. False if that fails."""
        if staged is not None:
            staged[...] = rows
        return True

    def read(self, logits: Any, indices: Sequence[int], staged: Any) -> None:
        """Copy the processed rows from `staged` to these rows of the logits; None if they are the logits themselves."""
        if staged is not None:
            tensors.put_rows(logits, indices, staged)

    def refuse(self) -> None:
        """Stop using the region, because CUDA failed or the server refused it. It never refuses host memory."""
