"""Calls and sessions of a client that has no server: they are processed in this process."""

from __future__ import annotations

from difflib import get_close_matches
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

from logitport.errors import InvalidArgument, NotInstalled, PayloadError
from logitport.session.transports.embedded_transport import EmbeddedTransport
from logitport.shipping import calls
from logitport_proto import processing_pb2, registry_pb2

if TYPE_CHECKING:
    from collections.abc import Sequence

    from logitport.client.call_sender import Call
    from logitport.errors import LogitportError
    from logitport.servers.channels import ServerChannel
    from logitport.session.transports.embedded_transport import Frames
    from logitport.shipping.request import ProcessorLike

_Result = TypeVar("_Result")

TARGET = "embedded"
GROUP = "logitport.embedded"
# How similar to "embedded" a target is that was probably meant to be it (difflib's cutoff).
_MIN_SIMILARITY = 0.8


class EmbeddedServer(Protocol):
    """The processors and sessions of this process, see `logitport_session.embedded.EmbeddedSessions`."""

    def __init__(self, programs: Path | None = None, trusted: Sequence[ProcessorLike] = ()) -> None: ...

    def frames(self) -> Frames:
        """Return a session that is opened by its first frame."""

    def list(self) -> list[registry_pb2.ProcessorInfo]:
        """Describe all processors."""

    def get(self, name: str) -> registry_pb2.ProcessorInfo:
        """Describe a processor. Raises NotFound."""

    def apply(self, message: processing_pb2.ApplyRequest) -> processing_pb2.ApplyResponse:
        """Process logits without a session. Raises LogitportError."""

    def close(self) -> None:
        """End its threads."""


def programs_folder(target: str) -> Path | None:
    """Return the folder of programs in "embedded:FOLDER"; None for "embedded"."""
    _, _, folder = target.partition(":")
    return Path(folder) if folder else None


def is_embedded(target: object) -> bool:
    """Whether a target means sessions in this process.

    Raises:
        InvalidArgument: it is "embedded:" without a folder, or a misspelling of "embedded" that is no address.
    """
    if not isinstance(target, str):
        return False
    word, colon, rest = target.partition(":")
    if word == TARGET and (rest or not colon):
        return True
    is_address = rest.isdecimal() or "/" in word or "," in target
    if not is_address and get_close_matches(word.strip().lower(), [TARGET], 1, _MIN_SIMILARITY):
        raise InvalidArgument(
            f"target {target!r} is no address; write {TARGET} for sessions in this process, or {TARGET}:FOLDER for "
            "those with the programs of a folder"
        )
    return False


class _NoServers:
    """The servers of a client that has none. Has the attributes of `Servers` that a client uses.

    Attributes:
        text: the target.
        single: whether there are no others to go to.
    """

    single = True

    def __init__(self, text: str) -> None:
        self.text = text


class EmbeddedSender:
    """Processes the calls of a client in this process. Has the methods of `CallSender`. Thread-safe.

    Args:
        target: "embedded", or "embedded:FOLDER" with a folder of programs.
        trusted: processors that are no programs, and run in this process nevertheless.

    Attributes:
        servers: none.
        timeout, max_message_bytes, closed: see `CallSender`.

    Raises:
        InvalidArgument: an installed processor cannot be used, or a file of the folder is no program.
    """

    def __init__(
        self, target: str, timeout: float, max_message_bytes: int, trusted: Sequence[ProcessorLike] = ()
    ) -> None:
        self.servers = _NoServers(target)
        self.timeout = calls.seconds(timeout, "timeout")
        self.max_message_bytes = calls.count(max_message_bytes, "max_message_bytes", 1)
        self.closed = False
        self._sessions = _sessions_class()(programs_folder(target), trusted)

    def result(self, call: Call[_Result]) -> _Result:
        """Process a call, and return its result. Raises LogitportError."""
        return call.decode(self.reply(call))

    def reply(self, call: Call[Any]) -> Any:
        """Process a call, and return the reply. Raises LogitportError."""
        self.check_open()
        if call.method == "Get":
            return registry_pb2.GetResponse(processor=self._sessions.get(call.message.processor))
        if call.method == "List":
            return registry_pb2.ListResponse(processors=self._sessions.list())
        if call.method == "Apply":
            return self._sessions.apply(call.message)
        raise PayloadError(
            f"{call.method} needs a server: with the target {self.servers.text!r}, sessions run in this process. Start "
            "`logitport serve`, and use its address as the target",
            code=PayloadError.NOT_ALLOWED,
        )

    def send(self, server: ServerChannel, call: Call[Any]) -> Any:  # noqa: ARG002
        """Process a call, as `reply`."""
        return self.reply(call)

    def check_open(self) -> None:
        """Raise ServerUnavailable if the client is closed."""
        if self.closed:
            raise calls.client_closed(self.servers.text)

    def close(self) -> None:
        """Process no call any more."""
        self.closed = True
        self._sessions.close()

    # What `Session` needs of the choice of its server.

    def connect(self, _: float) -> EmbeddedTransport:
        """Return a transport to a new session."""
        self.check_open()
        return EmbeddedTransport(self._sessions.frames(), self.max_message_bytes)

    def refused(self) -> None:
        """Do nothing: there is no other server."""

    def restore(self) -> dict[str, LogitportError]:
        """Register nothing: there is no registry."""
        return {}


def _sessions_class() -> type[EmbeddedServer]:
    for point in entry_points(group=GROUP):
        return cast("type[EmbeddedServer]", point.load())
    raise NotInstalled(f"no package provides the entry point group {GROUP!r}; install logitport again")
