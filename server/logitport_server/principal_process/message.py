"""The base of the messages between the front door and a principal's process."""

from __future__ import annotations

import msgspec


class Message(msgspec.Struct, kw_only=True, tag=True):
    """A message.

    Attributes:
        call: number of the call that it makes or answers; 0 for a message that is neither.
    """

    call: int = 0


class Failed(Message):
    """The answer to a call that has failed.

    Attributes:
        error: a serialized `common_pb2.Error`.
    """

    error: bytes


class Done(Message):
    """The answer to a call that has succeeded, and has no result."""
