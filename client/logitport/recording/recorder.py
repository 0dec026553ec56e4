"""Collects the steps of a session's requests for a recording. Never raises, and never waits."""

from __future__ import annotations

import functools
import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol

import numpy as np
import orjson

from logitport import payload
from logitport.errors import LogitportError, MalformedPayload
from logitport.recording.events import (
    RecordedProcessor,
    RecordedRow,
    RequestBegan,
    RequestEnded,
    RequestStepped,
    SessionOpened,
)
from logitport.recording.file import RecordingFile
from logitport.recording.top_logits import take
from logitport.recording.writer import Writer
from logitport_proto import common_pb2

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from logitport.core.edits import Edits
    from logitport.core.history import History
    from logitport.core.row_edits import RowEdits
    from logitport.recording.events import Event
    from logitport.recording.options import RecordOptions
    from logitport.recording.top_logits import Taken
    from logitport_proto import processing_pb2

_P = ParamSpec("_P")

logger = logging.getLogger(__name__)

# Of one step: more would take the engine's time.
_MAX_SAMPLED_ROWS = 16
_EVENT_BYTES = 400  # of objects around the arrays
_GREEDY_TEMPERATURE = 1e-5  # as in the server


class RecordableRequest(Protocol):
    """A request of the session: its handle."""

    request_id: str
    history: History
    processors: tuple[str, ...]
    names: tuple[str, ...]
    removed: bool

    @property
    def message(self) -> common_pb2.Request:
        """The request without its ids."""


@dataclass
class _Tracked:
    """A request.

    Attributes:
        key: its number; None if it is not recorded.
        greedy: whether the engine samples its largest logit.
        steps: number of its steps.
        known: whether the file, or the queue, has its history before the next step.
    """

    key: int | None
    greedy: bool
    steps: int = 0
    known: bool = False


@dataclass(frozen=True)
class StepReply:
    """What the engine has received for a step.

    Attributes:
        edits: of all rows.
        reads: the rows of which the server, or a program here, has read logits.
        errors: the message of each failed request.
    """

    edits: Edits
    reads: Collection[int]
    errors: Mapping[Any, str]


class _Ended:
    steps = 0
    size_bytes = _EVENT_BYTES

    def __init__(self, key: int) -> None:
        self._key = key

    def events(self) -> Iterator[Event]:
        yield RequestEnded(self._key)


@dataclass
class _Part:
    """A recorded request in a step."""

    tracked: _Tracked
    began: _Began | None
    index: int
    base_length: int
    new_ids: NDArray[np.int32]
    draft_ids: tuple[int, ...]
    rows: list[tuple[int, int]]  # row of the step, offset
    error: str = ""


@dataclass
class _Began:
    """A request, with copies of its ids; its message does not change after the admission."""

    request_id: str
    message: common_pb2.Request
    processors: tuple[str, ...]
    names: tuple[str, ...]
    prompt: NDArray[np.int32]
    output: NDArray[np.int32]


class StepItem:
    """A step of the session, before and after its reply.

    Attributes:
        size_bytes, steps: see `Item`.
    """

    def __init__(self, parts: list[_Part], recorder: Recorder, *, greedy: bool) -> None:
        self.parts = parts
        self._recorder = recorder
        self._greedy = greedy
        self._reply: StepReply | None = None
        self._sampled: list[int] = []
        self._before: Taken | None = None
        self._after: Taken | None = None
        self.steps = len(parts)
        self.size_bytes = _EVENT_BYTES * len(parts) + sum(
            part.new_ids.nbytes + (part.began.prompt.nbytes + part.began.output.nbytes if part.began else 0)
            for part in parts
        )

    def sample(self, logits: Any) -> None:
        """Take the logits before the chains. Does nothing if they are not those of the step."""
        options = self._recorder.options
        every = options.sample_every
        due = [part for part in self.parts if every and part.index % every == 0]
        self._sampled = sorted(row for part in due for row, _ in part.rows)[:_MAX_SAMPLED_ROWS]
        if len(getattr(logits, "shape", ())) != 2 or len(logits) <= max(self._sampled, default=-1):
            self._sampled = []
        self._before = take(logits, self._sampled, options.top_k) if self._sampled else None

    def finish(self, reply: StepReply, errors: Mapping[int, str], logits: Any | None) -> None:
        """Take the reply, and the logits after the chains.

        Args:
            reply: the edits.
            errors: the message of each failed request, by key.
            logits: the rows; None if the engine applies the edits elsewhere.
        """
        self._reply = reply
        for part in self.parts:
            part.error = errors.get(part.tracked.key or 0, "")
        if self._before is not None and logits is not None:
            self._after = take(logits, self._sampled, self._recorder.options.top_k, self._before)
            self.size_bytes += self._before.size_bytes + self._after.size_bytes
        self.size_bytes += reply.edits.ids.nbytes + reply.edits.values.nbytes

    def events(self) -> Iterator[Event]:
        by_row: list[RowEdits] = []
        reads: Collection[int] = ()
        if self._reply is not None:
            rows = 1 + max((row for part in self.parts for row, _ in part.rows), default=-1)
            rows = max(rows, 1 + int(self._reply.edits.rows.max(initial=-1)))
            by_row, reads = self._reply.edits.unpack(rows), self._reply.reads
        tops: dict[int, tuple[Any, Any]] = {}
        if self._before is not None and self._after is not None:
            tops = dict(zip(self._sampled, zip(self._before.tops(), self._after.tops(), strict=True), strict=True))
        for part in self.parts:
            key = part.tracked.key or 0
            if part.began is not None:
                yield self._recorder.describe(key, part.began)
            yield RequestStepped(
                key,
                part.index,
                part.base_length,
                part.new_ids,
                np.array(part.draft_ids, np.int32),
                tuple(
                    RecordedRow(
                        offset,
                        None if self._reply is None or row in reads else tuple(by_row[row]),
                        *tops.get(row, (None, None)),
                    )
                    for row, offset in part.rows
                ),
                greedy=self._greedy,
                finished=self._reply is not None,
                error=part.error,
            )


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
        self.options = options
        self._payload_of = payload_of
        opened = SessionOpened(
            opening.vocab_size,
            opening.datatype,
            opening.model_name,
            opening.tokenizer_id,
            opening.engine,
            tuple(opening.eos_token_ids),
            _version(),
            time.time(),
        )
        self.writer = Writer(RecordingFile(options.path, options.max_bytes), opened, options.max_queue_bytes)
        self._requests: dict[RecordableRequest, _Tracked] = {}
        self._next_key = 1
        self._open: tuple[object, StepItem] | None = None

    @_guarded
    def begin(
        self,
        step: object,
        base_lengths: Mapping[Any, int],
        drafts: Mapping[Any, Sequence[int]],
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
        parts: dict[Any, _Part] = {}
        greedy = True
        for handle, base in base_lengths.items():
            tracked = self._tracked(handle)
            greedy = greedy and tracked.greedy
            if tracked.key is not None:
                parts[handle] = self._part(handle, tracked, base, drafts.get(handle, ()))
        for row, (handle, offset) in enumerate(rows):
            if handle in parts:
                parts[handle].rows.append((row, offset))
        if parts:
            self._open = step, StepItem(list(parts.values()), self, greedy=greedy)

    @_guarded
    def sample(self, step: object, logits: Any) -> None:
        """Record the logits before the chains of a step."""
        if self._open is not None and self._open[0] is step:
            self._open[1].sample(logits)

    @_guarded
    def finish(self, step: object, reply: StepReply, logits: Any | None) -> None:
        """Record the reply to a step, and the logits after its chains; None if the engine applies edits elsewhere."""
        if self._open is None or self._open[0] is not step:
            return
        tracked = {handle: self._requests.get(handle) for handle in reply.errors}
        errors = {one.key: reply.errors[handle] for handle, one in tracked.items() if one is not None and one.key}
        self._open[1].finish(reply, errors, logits)
        self._flush()

    @_guarded
    def remove(self, handle: RecordableRequest) -> None:
        """Record the end of a request."""
        self._flush()
        tracked = self._requests.pop(handle, None)
        if tracked is not None and tracked.key is not None and tracked.steps:
            self.writer.offer(_Ended(tracked.key))

    @_guarded
    def flush(self) -> None:
        """Queue a step that will not be finished."""
        self._flush()

    def describe(self, key: int, began: _Began) -> RequestBegan:
        """Make the event of a request. Called on the writer's thread."""
        message = began.message
        digests = (*began.processors, *[""] * len(message.processors))  # an older server has stated none
        return RequestBegan(
            key,
            began.request_id,
            began.prompt,
            began.output,
            tuple(
                self._processor(call, digest, name)
                for call, digest, name in zip(message.processors, digests, began.names, strict=False)
            ),
            orjson.loads(message.sampling_params or b"{}"),
            "skip" if message.on_error == common_pb2.ON_ERROR_SKIP else "abort",
        )

    def _flush(self) -> None:
        if self._open is None:
            return
        item, self._open = self._open[1], None
        if not self.writer.offer(item):
            for part in item.parts:
                part.tracked.known = False  # the next step brings the whole history

    def _tracked(self, handle: RecordableRequest) -> _Tracked:
        tracked = self._requests.get(handle)
        if tracked is None:
            for other in [other for other in self._requests if other.removed]:  # without `Session.remove`
                self.remove(other)
            key = self._next_key if self.options.chooses(handle.request_id) else None
            self._next_key += key is not None
            temperature = orjson.loads(handle.message.sampling_params or b"{}").get("temperature")
            greedy = isinstance(temperature, int | float) and temperature < _GREEDY_TEMPERATURE
            tracked = self._requests[handle] = _Tracked(key, greedy)
        return tracked

    def _part(self, handle: RecordableRequest, tracked: _Tracked, base: int, drafts: Sequence[int]) -> _Part:
        ids = handle.history.token_ids
        began = None
        if not tracked.known:
            prompt_length = handle.history.prompt_length
            began = _Began(
                handle.request_id,
                handle.message,
                handle.processors,
                handle.names,
                ids[:prompt_length].copy(),
                ids[prompt_length:base].copy(),
            )
            tracked.known = True
        part = _Part(tracked, began, tracked.steps, base, ids[base:].copy(), tuple(drafts), [])
        tracked.steps += 1
        return part

    def _processor(self, call: common_pb2.ProcessorCall, admitted: str, name: str) -> RecordedProcessor:
        """Make the part of a processor; at its admission its digest has replaced its registered name."""
        by = call.processor.WhichOneof("by")
        params = orjson.loads(call.params or b"{}")
        if by == "builtin":
            return RecordedProcessor(builtin=call.processor.builtin, params=params)
        digest = call.processor.digest if by == "digest" else admitted
        text = call.processor.payload if by == "payload" else self._payload_of(digest)
        class_name = ""
        if text:
            try:
                shipped = payload.parse(text)
            except (MalformedPayload, LogitportError):
                pass
            else:
                digest, class_name = shipped.digest, shipped.class_name
        return RecordedProcessor("", name, digest, class_name, params, text if self.options.payloads else "")


@functools.cache
def _version() -> str:
    from importlib.metadata import version

    return version("logitport")
