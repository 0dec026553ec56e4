"""Reads a recording."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError

from logitport.errors import InvalidRecording
from logitport.recording import members
from logitport.recording.checks import check_opening, check_request, check_step
from logitport.recording.events import split
from logitport_proto.recording_pb2 import RecordedEvent, RequestBegan, RequestStepped

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator
    from typing import TypeAlias

    from logitport_proto.recording_pb2 import RecordingStopped, SessionBegan

    Keep: TypeAlias = Callable[[int], None]

# Of the events that are kept.
MAX_MEMORY_BYTES = 2 << 30
# Memory of a parsed event, of each of its bytes. A forged one takes up to 60 bytes: an empty message has two.
_PARSED_BYTES = 64
# Of the objects of a session, of a request without its processors, of each of these, and of a step.
_SESSION_BYTES, _REQUEST_BYTES, _PROCESSOR_BYTES, _STEP_BYTES = 4096, 1500, 400, 100


class Steps:
    """Steps, which are parsed at each access: serialized, they take a tenth of the memory."""

    def __init__(self, serialized: list[bytes]) -> None:
        self._serialized = serialized

    def __len__(self) -> int:
        return len(self._serialized)

    def __getitem__(self, index: int) -> RequestStepped:
        return RequestStepped.FromString(self._serialized[index])

    def __iter__(self) -> Iterator[RequestStepped]:
        return map(RequestStepped.FromString, self._serialized)


@dataclass
class RequestPart:
    """Steps of a request without a gap.

    Attributes:
        serialized_request, serialized_steps: its events.
    """

    serialized_request: bytes
    serialized_steps: list[bytes] = field(default_factory=list)

    @property
    def began(self) -> RequestBegan:
        """The request, with its history before the first step. Parsed at each access."""
        return RequestBegan.FromString(self.serialized_request)

    @property
    def steps(self) -> Steps:
        """The steps."""
        return Steps(self.serialized_steps)


@dataclass
class RecordedRequest:
    """A request.

    Attributes:
        parts: its steps; more than one part if some were dropped.
        ended: whether the engine has removed it.
    """

    parts: list[RequestPart]
    ended: bool = False

    @property
    def began(self) -> RequestBegan:
        """The request, with its history before its first step."""
        return self.parts[0].began

    @property
    def steps(self) -> Steps:
        """All steps."""
        return Steps([one for part in self.parts for one in part.serialized_steps])


@dataclass
class RecordedSession:
    """A session.

    Attributes:
        began: the session.
        requests: its requests, in their order.
        dropped_steps: number of steps of requests that were not recorded.
        stopped: how the recording ended; None if its process ended before.
    """

    began: SessionBegan
    requests: list[RecordedRequest] = field(default_factory=list)
    dropped_steps: int = 0
    stopped: RecordingStopped | None = None


@dataclass
class Recording:
    """The content of a file.

    Attributes:
        sessions: in the order in which they began.
        incomplete_bytes: size of an incomplete member at the end, which a process has left that was killed.
    """

    sessions: list[RecordedSession]
    incomplete_bytes: int = 0


def read_recording(
    path: str | os.PathLike[str],
    *,
    request_id: str | None = None,
    max_memory_bytes: int = MAX_MEMORY_BYTES,
    max_bytes: int | None = None,
) -> Recording:
    """Read a file. What a process has written before it was killed is complete up to its last member.

    Args:
        path: the file.
        request_id: only requests with this id; None for all.
        max_memory_bytes: estimated memory of the result.
        max_bytes: of all events in the file after decompression, also of those that are left out; by default a
            quarter of `max_memory_bytes`, and 512 MiB or more.

    Raises:
        InvalidRecording: the file cannot be read, is no recording, is damaged, has more events, or has a session with
            more than 2**22 ids.
    """
    memory = _Memory(max_memory_bytes)
    builders: dict[int, _SessionBuilder] = {}
    incomplete = 0
    try:
        with open(path, "rb") as file:
            for content in members.read(file, max_bytes or max(members.MAX_TOTAL_BYTES, max_memory_bytes // 4)):
                if isinstance(content, int):
                    incomplete = content
                    continue
                for serialized in split(content):
                    memory.check(_PARSED_BYTES * len(serialized))
                    event = RecordedEvent.FromString(serialized)
                    if event.session_id not in builders:
                        memory.keep(_SESSION_BYTES)
                        builders[event.session_id] = _SessionBuilder(request_id, memory.keep)
                    builders[event.session_id].add(event)
    except OSError as error:
        raise InvalidRecording(f"the recording cannot be read: {error}") from error
    except InvalidRecording as error:
        raise InvalidRecording(f"{path}: {error}") from error
    except (DecodeError, ValueError) as error:
        raise InvalidRecording(f"{path}: an event cannot be read: {error}") from error
    return Recording([one.session for one in builders.values() if one.session is not None], incomplete)


class _Memory:
    """Counts the memory of events, up to a limit.

    Args:
        limit: in bytes.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._kept = 0

    def check(self, size: int) -> None:
        """Raise InvalidRecording if so much more would be above the limit."""
        if self._kept + size > self._limit:
            raise InvalidRecording(
                f"its events would take more than {self._limit >> 20} MiB of memory: read one request, with `logitport "
                "replay --request ID`, or raise --max-memory; in Python pass request_id or max_memory_bytes to "
                "read_recording"
            )

    def keep(self, size: int) -> None:
        """Add what is kept. Raises as `check`."""
        self.check(size)
        self._kept += size


class _SessionBuilder:
    """Puts the events of a session together.

    Args:
        request_id: only requests with this id; None for all.
        keep: called before an event is kept, with the memory that it takes.
    """

    def __init__(self, request_id: str | None, keep: Keep) -> None:
        self.session: RecordedSession | None = None
        self._request_id = request_id
        self._keep = keep
        self._by_key: dict[int, RecordedRequest] = {}
        self._left_out: set[int] = set()

    def add(self, event: RecordedEvent) -> None:
        """Add an event; one of an unknown kind, of a later version, is left out. Raises InvalidRecording."""
        kind = event.WhichOneof("event")
        if kind == "session_began":
            if self.session is None:
                check_opening(event.session_began)
                self._keep(_PARSED_BYTES * event.ByteSize())
                self.session = RecordedSession(event.session_began)
        elif self.session is None:
            raise InvalidRecording("a session has events before its first one")
        elif kind == "request_began":
            self._begin(self.session, event.request_began)
        elif kind == "request_stepped":
            self._step(self.session, event.request_stepped)
        elif kind == "request_ended":
            if event.request_ended.key not in self._left_out:
                self._request(event.request_ended.key).ended = True
        elif kind == "steps_dropped":
            self.session.dropped_steps += event.steps_dropped.steps
        elif kind == "recording_stopped":
            self._keep(_PARSED_BYTES * event.ByteSize())
            self.session.stopped = event.recording_stopped
            self.session.dropped_steps = max(self.session.dropped_steps, event.recording_stopped.dropped_steps)

    def _begin(self, session: RecordedSession, event: RequestBegan) -> None:
        self._keep(_REQUEST_BYTES)  # also for one that is left out
        request = self._by_key.get(event.key)
        if request is None and self._request_id not in (None, event.request.request_id):
            self._left_out.add(event.key)
            return
        check_request(event)
        serialized = event.SerializeToString()
        self._keep(len(serialized) + _PROCESSOR_BYTES * len(event.processors))
        if request is None:
            request = self._by_key[event.key] = RecordedRequest([])
            session.requests.append(request)
        request.parts.append(RequestPart(serialized))

    def _step(self, session: RecordedSession, event: RequestStepped) -> None:
        if event.key in self._left_out:
            return
        steps = self._request(event.key).parts[-1].serialized_steps
        check_step(event, session.began.opening.vocab_size)
        serialized = event.SerializeToString()
        self._keep(len(serialized) + _STEP_BYTES)
        steps.append(serialized)

    def _request(self, key: int) -> RecordedRequest:
        if key not in self._by_key:
            raise InvalidRecording(f"request {key} has events before its first one")
        return self._by_key[key]
