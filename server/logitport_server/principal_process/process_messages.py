"""The messages between the front door and a principal's process."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from logitport_server.principal_process import report_messages, worker_messages
from logitport_server.principal_process.message import Done, Failed, Message


class OpenStream(Message):
    """Serve the frames of a session, or one call, on the socket that comes with the message.

    The process closes the socket when nothing of the session is left; then the session no longer counts for the
    quotas. The front door shuts down its writing direction when the call has ended.

    Attributes:
        number: number of the stream; it increases from stream to stream.
        kind: "session"; "apply" for a call of Apply; or "check" to check what a call of Register registers: the answer
            is a `Checked`.
        scopes: the caller's scopes.
        peer: gRPC's name for the caller's end of its connection.
        traceparent, tracestate: the caller's trace, by W3C Trace Context.
        socket_path: of the local transport; "" if it is not offered.
        access_token: for the session's connection of the local transport.
    """

    number: int
    kind: Literal["session", "apply", "check"]
    scopes: list[str]
    peer: str = ""
    traceparent: str = ""
    tracestate: str = ""
    socket_path: str = ""
    access_token: bytes = b""


class Checked(msgspec.Struct, array_like=True):
    """The answer to a call of the kind "check": a message of Register. The front door does not trust it.

    Attributes:
        name, replace, shared: from the message.
        start, end: where the bytes of the payload's string stand in the message.
        data, is_program, labels: from the payload.
    """

    name: str
    replace: bool
    shared: bool
    start: int
    end: int
    data: bytes
    is_program: bool
    labels: dict[str, Any]


class AttachConnection(Message):
    """Serve the session on the connection of the local transport that comes with the message."""

    number: int


class Leave(Message):
    """State to all sessions that they should move. Those that end now still get the replies to their frames."""


class UseKeys(Message):
    """Accept shipped processors that one of these keys has signed.

    Attributes:
        keys: Ed25519 public keys, 32 bytes each.
    """

    keys: list[bytes]


class Ping(Message):
    """A call of the front door, to see whether the process answers. The answer is `Done`."""


class BorrowMemory(Message):
    """Lend the process a further part of its principal's `--max-principal-memory`. The answer is a `MemoryPart`."""


class GiveBackMemory(Message):
    """A call of the front door: give back a part of what was lent. The answer is a `MemoryPart`."""


class MemoryPart(Message):
    """A part of the memory of the principal, or 0."""

    num_bytes: int


class Resolve(Message):
    """Find the registered processor that a request names. The answer is `Resolved`.

    Attributes:
        text: its name or digest.
        is_name: whether it is a name.
    """

    text: str
    is_name: bool


class Resolved(Message):
    """A registered processor.

    Attributes:
        owner: name of its owner.
        payload_id: names the payload with its signature, for `GetPayload`.
    """

    owner: str
    payload_id: bytes


class GetPayload(Message):
    """Send a payload that `Resolved` has named. The answer is `FoundPayload`.

    Attributes:
        text, is_name: see `Resolve`.
    """

    text: str
    is_name: bool


class FoundPayload(Message):
    """A payload. A memory file with its data comes with the message.

    Attributes:
        owner, payload_id: see `Resolved`.
        is_program, labels: from the payload.
    """

    owner: str
    payload_id: bytes
    is_program: bool
    labels: dict[str, Any]


TO_PROCESS: tuple[type[Any], ...] = (
    OpenStream,
    AttachConnection,
    Leave,
    UseKeys,
    Ping,
    GiveBackMemory,
    MemoryPart,
    Resolved,
    FoundPayload,
    Failed,
    Done,
    *worker_messages.TO_PROCESS,
    *report_messages.TO_PROCESS,
)
TO_FRONT_DOOR: tuple[type[Any], ...] = (
    Resolve,
    GetPayload,
    BorrowMemory,
    MemoryPart,
    Failed,
    Done,
    *worker_messages.TO_FRONT_DOOR,
    *report_messages.TO_FRONT_DOOR,
)
