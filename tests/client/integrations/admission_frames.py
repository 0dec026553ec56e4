"""Records the frames by which a hook admits and removes requests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from logitport.session.connection.frame_channel import FrameChannel

if TYPE_CHECKING:
    import pytest


def admission_frames(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Record the frames that admit and remove requests, and their numbers of requests."""
    frames: list[tuple[str, int]] = []
    exchange = FrameChannel.exchange

    def recorded(channel: FrameChannel, frame: Any) -> Any:
        if frame.HasField("add"):
            frames.append(("add", len(frame.add.requests)))
        elif frame.HasField("remove"):
            frames.append(("remove", len(frame.remove.slots) // 4))
        return exchange(channel, frame)

    monkeypatch.setattr(FrameChannel, "exchange", recorded)
    return frames
