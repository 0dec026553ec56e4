"""Reads a recording."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError

from logitport.errors import InvalidArgument
from logitport_proto.recording_pb2 import RecordedEvent, RequestBegan, RequestStepped
from logitport_recording.reading.event_checks import check_opening, check_request, check_step
from logitport_recording.reading.unpacking import MAX_TOTAL_BYTES, read, split

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

    from logitport_proto.recording_pb2 import RecordingStopped, SessionBegan

# Of the events that are kept.
MAX_MEMORY_BYTES = 2 << 30
# Memory of a parsed event, of each of its bytes. A forged one takes up to 60 bytes: an empty message has two.
_PARSED_BYTES = 64
# Of the objects of a session, of a request without its processors, of each of these, and of a step.
_SESSION_BYTES, _REQUEST_BYTES, _PROCESSOR_BYTES, _STEP_BYTES = 2048, 1000, 400, 100


@dataclass
class Steps:
    """Steps, which are parsed at each access: serialized, they take a tenth of the memory."""

    serialized: list[bytes] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.serialized)

    def __getitem__(self, index: int) -> RequestStepped:
        return RequestStepped.FromString(self.serialized[index])

    def __iter__(self) -> Iterator[RequestStepped]:
        return map(RequestStepped.FromString, self.serialized)


@dataclass
class RequestPart:
    """Steps of a request without a gap.

    Attributes:
        serialized: the request.
        steps: the steps.
    """

    serialized: bytes
    steps: Steps = field(default_factory=Steps)

    @property
    def began(self) -> RequestBegan:
        """The request, with its history before the first step. Parsed at each access."""
        return RequestBegan.FromString(self.serialized)


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
        return Steps([one for part in self.parts for one in part.steps.serialized])


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
        sessions: the oldest first.
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
        InvalidArgument: the file cannot be read, is no recording, is damaged, has more events, or has a session with
            more than 2**22 ids.
    """
    builder = _Builder(request_id, max_memory_bytes)
    incomplete = 0
    try:
        with open(path, "rb") as file:
            for content in read(file, max_bytes or max(MAX_TOTAL_BYTES, max_memory_bytes // 4)):
                if isinstance(content, int):
                    incomplete = content
                else:
                    for event in split(content):
                        builder.add(event)
    except OSError as error:
        raise InvalidArgument(f"the recording cannot be read: {error}") from error
    except InvalidArgument as error:
        raise InvalidArgument(f"{path}: {error}") from error
    except DecodeError as error:
        raise InvalidArgument(f"{path}: an event cannot be read: {error}") from error
    return Recording([*builder.sessions.values()], incomplete)


class _Builder:
    """Puts events together.

    Args:
        request_id: only requests with this id; None for all.
        max_memory_bytes: of what is kept, and of the event that is parsed.

    Attributes:
        sessions: by their numbers.
    """

    def __init__(self, request_id: str | None, max_memory_bytes: int) -> None:
        self.sessions: dict[int, RecordedSession] = {}
        self._request_id = request_id
        self._limit = max_memory_bytes
        self._kept = 0
        # By the numbers of session and request; None for a request that is left out.
        self._requests: dict[tuple[int, int], RecordedRequest | None] = {}

    def add(self, serialized: bytes) -> None:
        """Add an event; one of an unknown kind, of a later version, is left out.

        Raises:
            InvalidArgument: it does not fit to the others, or its values cannot be, or it would take too much memory.
            DecodeError: it is no event.
        """
        self._check_memory(_PARSED_BYTES * len(serialized))
        event = RecordedEvent.FromString(serialized)
        kind, session = event.WhichOneof("event"), self.sessions.get(event.session_id)
        if session is None:
            if kind != "session_began":
                raise InvalidArgument("a session has events before its first one")
            check_opening(event.session_began)
            self._keep(_PARSED_BYTES * len(serialized) + _SESSION_BYTES)
            self.sessions[event.session_id] = RecordedSession(event.session_began)
        elif kind == "request_began":
            self._begin(event.session_id, session, event.request_began)
        elif kind == "request_stepped":
            self._step(event.session_id, session, event.request_stepped)
        elif kind == "request_ended":
            request = self._request(event.session_id, event.request_ended.key)
            if request is not None:
                request.ended = True
        elif kind == "steps_dropped":
            session.dropped_steps += event.steps_dropped.steps
        elif kind == "recording_stopped":
            self._keep(_PARSED_BYTES * len(serialized))
            session.stopped = event.recording_stopped
            session.dropped_steps = max(session.dropped_steps, event.recording_stopped.dropped_steps)

    def _begin(self, session_id: int, session: RecordedSession, event: RequestBegan) -> None:
        key = session_id, event.key
        if key not in self._requests:
            self._keep(_REQUEST_BYTES)
            self._requests[key] = None
            if self._request_id in (None, event.request.request_id):
                self._requests[key] = request = RecordedRequest([])
                session.requests.append(request)
        if (known := self._requests[key]) is not None:
            check_request(event)
            serialized = event.SerializeToString()
            self._keep(len(serialized) + _REQUEST_BYTES + _PROCESSOR_BYTES * len(event.processors))
            known.parts.append(RequestPart(serialized))

    def _step(self, session_id: int, session: RecordedSession, event: RequestStepped) -> None:
        request = self._request(session_id, event.key)
        if request is not None:
            check_step(event, session.began.opening.vocab_size)
            serialized = event.SerializeToString()
            self._keep(len(serialized) + _STEP_BYTES)
            request.parts[-1].steps.serialized.append(serialized)

    def _request(self, session_id: int, key: int) -> RecordedRequest | None:
        if (session_id, key) not in self._requests:
            raise InvalidArgument(f"request {key} has events before its first one")
        return self._requests[session_id, key]

    def _keep(self, size: int) -> None:
        self._check_memory(size)
        self._kept += size

    def _check_memory(self, size: int) -> None:
        if self._kept + size > self._limit:
            raise InvalidArgument(
                f"its events would take more than {self._limit >> 20} MiB of memory: read one request, with `logitport "
                "replay --request ID`, or raise --max-memory; in Python pass request_id or max_memory_bytes to "
                "read_recording"
            )
