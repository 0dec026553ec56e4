"""Reads a recording."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from logitport.core.row_edits import EditKind, check_edit
from logitport.errors import InvalidArgument
from logitport.recording import chunks, codec
from logitport.recording.events import (
    RecordingStopped,
    RequestBegan,
    RequestEnded,
    RequestStepped,
    SessionOpened,
    StepsDropped,
)

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from logitport.recording.events import Event

# Of the events that are kept. They take about ten times as much memory as in the file after decompression.
MAX_MEMORY_BYTES = 2 << 30
# Fifteen times as wide as any known model. A replay makes whole rows, which a forged size must not make huge.
MAX_VOCAB_SIZE = 1 << 22


@dataclass
class RequestPart:
    """Steps of a request without a gap.

    Attributes:
        began: the request, with its history before the first of them.
        steps: the steps.
    """

    began: RequestBegan
    steps: list[RequestStepped] = field(default_factory=list)


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
    def steps(self) -> Sequence[RequestStepped]:
        """All steps."""
        return [step for part in self.parts for step in part.steps]


@dataclass
class RecordedSession:
    """A session.

    Attributes:
        opened: the session.
        requests: its requests, in their order.
        dropped_steps: number of steps of requests that were not recorded.
        stopped: how the recording ended; None if its process ended before.
    """

    opened: SessionOpened
    requests: list[RecordedRequest] = field(default_factory=list)
    dropped_steps: int = 0
    stopped: RecordingStopped | None = None


@dataclass
class Recording:
    """The content of a file.

    Attributes:
        sessions: in the order in which they began.
        incomplete_bytes: size of an incomplete chunk at the end, which a process has left that was killed.
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
    """Read a file. What a process has written before it was killed is complete up to its last chunk.

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
    memory = _Memory(max_memory_bytes)
    builders: dict[int, _SessionBuilder] = {}
    incomplete = 0
    try:
        with open(path, "rb") as file:
            for item in chunks.read(file, max_bytes or max(chunks.MAX_TOTAL_BYTES, max_memory_bytes // 4)):
                if isinstance(item, int):
                    incomplete = item
                    continue
                builder = builders.setdefault(item.session_id, _SessionBuilder(request_id))
                for event in codec.decode(item.events, memory.reserve):
                    if not builder.add(event):
                        memory.release()
    except OSError as error:
        raise InvalidArgument(f"the recording cannot be read: {error}") from error
    except InvalidArgument as error:
        raise InvalidArgument(f"{path}: {error}") from error
    return Recording([one.session for one in builders.values() if one.session is not None], incomplete)


class _Memory:
    """Counts the memory of events, up to a limit.

    Args:
        limit: in bytes.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._used = self._last = 0

    def reserve(self, size: int) -> None:
        """Add an event. Raises InvalidArgument if all would take more than the limit."""
        self._last = size
        self._used += size
        if self._used > self._limit:
            raise InvalidArgument(
                f"its events would take more than {self._limit >> 20} MiB of memory: read one request, with `logitport "
                "replay --request ID`, or raise --max-memory; in Python pass request_id or max_memory_bytes to "
                "read_recording"
            )

    def release(self) -> None:
        """Remove the last event, which is not kept."""
        self._used -= self._last


class _SessionBuilder:
    """Puts the events of a session together.

    Args:
        request_id: only requests with this id; None for all.
    """

    def __init__(self, request_id: str | None) -> None:
        self.session: RecordedSession | None = None
        self._request_id = request_id
        self._by_key: dict[int, RecordedRequest] = {}
        self._left_out: set[int] = set()

    def add(self, event: Event) -> bool:
        """Add an event. Returns whether it is kept."""
        if isinstance(event, SessionOpened):
            _check_width(event)
            self.session = self.session or RecordedSession(event)
            return True
        if self.session is None:
            raise InvalidArgument("a session has events before its first one")
        if isinstance(event, RequestBegan):
            return self._begin(self.session, event)
        if isinstance(event, RequestStepped):
            if event.key in self._left_out:
                return False
            _check_ids(event, self.session.opened.vocab_size)
            self._request(event.key).parts[-1].steps.append(event)
            return True
        if isinstance(event, RequestEnded):
            if event.key not in self._left_out:
                self._request(event.key).ended = True
        elif isinstance(event, StepsDropped):
            self.session.dropped_steps += event.steps
        else:
            self.session.stopped = event
            self.session.dropped_steps = max(self.session.dropped_steps, event.dropped_steps)
        return False

    def _begin(self, session: RecordedSession, event: RequestBegan) -> bool:
        request = self._by_key.get(event.key)
        if request is not None:
            request.parts.append(RequestPart(event))
            return True
        if self._request_id not in (None, event.request_id):
            self._left_out.add(event.key)
            return False
        request = self._by_key[event.key] = RecordedRequest([RequestPart(event)])
        session.requests.append(request)
        return True

    def _request(self, key: int) -> RecordedRequest:
        if key not in self._by_key:
            raise InvalidArgument(f"request {key} has events before its first one")
        return self._by_key[key]


def _check_width(opened: SessionOpened) -> None:
    if opened.vocab_size > MAX_VOCAB_SIZE:
        raise InvalidArgument(
            f"a session has a vocabulary of {opened.vocab_size} ids; at most {MAX_VOCAB_SIZE} are read: each row of a "
            "replay would need the memory of all ids"
        )


def _check_ids(step: RequestStepped, vocab_size: int) -> None:
    """Raise InvalidArgument if rows do not have these ids. The history may have any, as the engine has sent them."""
    try:
        for row in step.rows:
            for kind, ids, _ in row.edits or ():
                check_edit(kind, ids, vocab_size)
            for top in (row.before, row.after):
                if top is not None:
                    check_edit(EditKind.DENY, top.ids, vocab_size)
    except InvalidArgument as error:
        raise InvalidArgument(f"step {step.index} of request {step.key}: {error}") from error
