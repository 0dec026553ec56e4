"""Records the steps of a session's requests. Never raises, and never waits."""

from __future__ import annotations

import functools
import logging
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar

import numpy as np
import orjson

from logitport import payload
from logitport.core.drafts import Drafts
from logitport.errors import LogitportError
from logitport_proto.common_pb2 import Request
from logitport_proto.recording_pb2 import (
    RecordedEvent,
    RecordedProcessor,
    RequestBegan,
    RequestEnded,
    SessionBegan,
)
from logitport_recording.writing.file import RecordingFile
from logitport_recording.writing.items import EVENT_BYTES, RecordingStep, RequestRecording, StepPart
from logitport_recording.writing.writer import Item, Writer

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from logitport.core.edits import Edits
    from logitport.core.history import History
    from logitport.core.row_events import RequestEvent
    from logitport_proto import processing_pb2
    from logitport_recording.record_options import RecordOptions

_P = ParamSpec("_P")
T = TypeVar("T")

logger = logging.getLogger(__name__)

_GREEDY_TEMPERATURE = 1e-5  # as in the server


class RecordableRequest(Protocol):
    """A request of the session: its handle."""

    request_id: str
    history: History
    processors: tuple[str, ...]
    names: tuple[str, ...]
    removed: bool

    @property
    def message(self) -> Request:
        """The request without its ids."""


def _guarded(method: Callable[_P, None]) -> Callable[_P, None]:
    """Log the first error of a recorder's method and end the recording; the engine goes on."""

    @functools.wraps(method)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> None:
        try:
            method(*args, **kwargs)
        except Exception:
            recorder = args[0]
            assert isinstance(recorder, Recorder)  # noqa: S101 - these are its methods
            recorder.writer.stopped = True
            logger.warning("recording has stopped, and the engine goes on", exc_info=True)

    return call


class Recorder:
    """Records a session.

    Args:
        options: what to record.
        opening: the session.
        payload_of: returns a registered payload by its digest; "" if it is not known.

    Raises:
        InvalidArgument: the file cannot be opened.
    """

    def __init__(
        self,
        options: RecordOptions,
        opening: processing_pb2.OpenSession,
        payload_of: Callable[[str], str],
    ) -> None:
        self._options = options
        self._payload_of = payload_of
        began = SessionBegan(opening=opening, time=time.time(), sdk_version=_version())
        self.writer = Writer(RecordingFile(options.path, options.max_bytes), began, options.max_queue_bytes)
        self._requests: dict[RecordableRequest, RequestRecording] = {}
        self._next_key = 1
        self._open: tuple[object, RecordingStep] | None = None

    @_guarded
    def begin(
        self,
        step: object,
        base_lengths: Mapping[Any, int],
        drafts: Mapping[Any, Drafts],
        rows: Sequence[tuple[Any, int]],
    ) -> None:
        """Record the beginning of a step, after its ids were appended to the histories.

        Args:
            step: identifies it.
            base_lengths: the length of each history before that.
            drafts: the draft tokens of requests.
            rows: the request and the draft offset of each row.
        """
        self._flush()
        if self.writer.stopped:
            return
        parts: dict[Any, StepPart] = {}
        greedy = True
        for handle, base in base_lengths.items():
            tracked = self._tracked(handle)
            greedy = greedy and tracked.greedy
            if tracked.key is not None:
                parts[handle] = self._part(handle, tracked, tracked.key, base, drafts.get(handle, Drafts()))
        for row, (handle, offset) in enumerate(rows):
            if handle in parts:
                parts[handle].rows.append((row, offset))
        if parts:
            self._open = step, RecordingStep(list(parts.values()), self._options, greedy=greedy)

    @_guarded
    def sample(self, step: object, logits: Any) -> None:
        """Record the logits before the chains of a step."""
        if self._open is not None and self._open[0] is step:
            self._open[1].sample(logits)

    @_guarded
    def finish(
        self,
        step: object,
        edits: Edits,
        reads: Collection[int],
        errors: Mapping[Any, str],
        events: Mapping[Any, Sequence[RequestEvent]],
        logits: Any | None,
    ) -> None:
        """Record the reply to a step.

        Args:
            step: identifies it.
            edits: of all rows.
            reads: the rows with logits that the server, or a program here, has read.
            errors: the message of each failed request.
            events: the events of each request that has any.
            logits: the rows after the chains; None if the engine applies the edits elsewhere.
        """
        if self._open is None or self._open[0] is not step:
            return
        self._open[1].finish(edits, reads, self._by_key(errors), self._by_key(events), logits)
        self._flush()

    def _by_key(self, values: Mapping[Any, T]) -> dict[int, T]:
        """The values of recorded requests, by key."""
        tracked = {handle: self._requests.get(handle) for handle in values}
        return {one.key: values[handle] for handle, one in tracked.items() if one is not None and one.key}

    @_guarded
    def remove(self, handle: RecordableRequest) -> None:
        """Record the end of a request."""
        self._flush()
        tracked = self._requests.pop(handle, None)
        if tracked is not None and tracked.key is not None and tracked.steps:
            ended = RecordedEvent(request_ended=RequestEnded(key=tracked.key))
            self.writer.offer(Item(lambda: [ended], EVENT_BYTES, 0))

    @_guarded
    def flush(self) -> None:
        """Queue a step that will not be finished."""
        self._flush()

    def _flush(self) -> None:
        if self._open is None:
            return
        step, self._open = self._open[1], None
        if not self.writer.offer(Item(step.events, step.size_bytes, len(step.parts), step.lose)):
            for part in step.parts:
                part.tracked.known = False  # the next step brings the whole history

    def _tracked(self, handle: RecordableRequest) -> RequestRecording:
        tracked = self._requests.get(handle)
        if tracked is None:
            for other in [other for other in self._requests if other.removed]:  # without `Session.remove`
                self.remove(other)
            key = self._next_key if self._options.chooses(handle.request_id) else None
            self._next_key += key is not None
            temperature = orjson.loads(handle.message.sampling_params or b"{}").get("temperature")
            greedy = isinstance(temperature, int | float) and temperature < _GREEDY_TEMPERATURE
            tracked = self._requests[handle] = RequestRecording(key, greedy)
        return tracked

    def _part(
        self, handle: RecordableRequest, tracked: RequestRecording, key: int, base: int, drafts: Drafts
    ) -> StepPart:
        ids, began = handle.history.token_ids, None
        if not tracked.known or tracked.lost:
            tracked.known, tracked.lost = True, False
            prompt_length, message = handle.history.prompt_length, handle.message
            request = Request(
                request_id=handle.request_id,
                prompt_ids=_column(ids[:prompt_length]),
                output_ids=_column(ids[prompt_length:base]),
                sampling_params=message.sampling_params,
                on_error=message.on_error,
            )
            describe = functools.partial(self._describe, handle)  # later: its admission may not have ended yet
            began = RequestBegan(key=key, request=request), describe
        drafted = _column(np.array(drafts, np.int32)) if drafts else b""
        parents = _column(np.array(drafts.parents, np.int32)) if drafts.parents else b""
        part = StepPart(tracked, key, began, tracked.steps, base, _column(ids[base:]), drafted, parents, [])
        tracked.steps += 1
        return part

    def _describe(self, handle: RecordableRequest) -> Iterator[RecordedProcessor]:
        """Describe the processors of a request. At its admission, digests have replaced their registered names."""
        for call, admitted, name in zip(handle.message.processors, handle.processors, handle.names, strict=False):
            by = call.processor.WhichOneof("by")
            if by == "builtin":
                yield RecordedProcessor(builtin=call.processor.builtin, params=call.params)
                continue
            digest, class_name = call.processor.digest if by == "digest" else admitted, ""
            text = call.processor.payload if by == "payload" else self._payload_of(digest)
            with suppress(LogitportError):
                if text:
                    shipped = payload.parse(text)
                    digest, class_name = shipped.digest, shipped.class_name
            shown = text if self._options.payloads else ""
            yield RecordedProcessor(name=name, digest=digest, class_name=class_name, params=call.params, payload=shown)


def _column(ids: NDArray[np.int32]) -> bytes:
    return ids.astype("<i4", copy=False).tobytes()


@functools.cache
def _version() -> str:
    from importlib.metadata import version

    return version("logitport")
