"""A processor in a worker, as the session that uses it sees it."""

from __future__ import annotations

import struct
import time
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import ref

import orjson

from logitport.core.edits import Edits
from logitport.errors import LogitportError, ProcessorFailed, ProcessorTimedOut, StateLost
from logitport_server.dialects import Dialect, RequestContext
from logitport_server.dialects.failures import WorkerLost
from logitport_server.executors.remote_state import RemoteState, numbers, take_told
from logitport_server.executors.shared_rows import SharedRows
from logitport_server.session.grouping import States

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

    from logitport_server.executors.worker import Worker
    from logitport_server.executors.zygote import WorkerProcess
    from logitport_server.registry.source import Source
    from logitport_server.shared_memory.regions import Region

_Taken = TypeVar("_Taken")

# A worker sends millions in a reply, and each takes this process microseconds, and memory, to go through.
_MOST_EDITS_A_ROW = 64


def _nobody() -> None:
    pass


class RemoteDialect(Dialect):
    """Calls a processor in the worker of its trust domain.

    A worker that ended is another process at the next call: it is given the processor again, and the state of every
    request is built from its history. A state that had kept something is lost with the process.

    Attributes:
        unpickled: whether the worker had to, or had the class already.
    """

    isolated = True

    def __init__(self, source: Source, worker: Worker) -> None:
        super().__init__(None, source.title, shipped=True)
        assert source.payload is not None  # noqa: S101 - a built-in has no worker
        self._source, self._payload = source, source.payload
        self._worker = worker
        self.domain = worker.domain
        self._number = next(numbers)
        self._process: WorkerProcess | None = None
        # Whom the process was last told that calls are for, if it has the states of them all.
        self._called: Callable[[], States | None] = _nobody
        self._memory = SharedRows(worker.gpu, worker.domain)
        self.unpickled = False
        # Whether a call was begun, and what was raised instead of it.
        self._begun = False
        self._not_begun: BaseException | None = None
        self._handed: torch.Tensor | None = None
        with worker.reserved(source, worker.deadlines.load):
            self._host(worker.deadlines.load)
        worker.dialects.add(self)

    def validate(self, params: dict[str, Any], sampling_params: dict[str, Any]) -> None:
        seconds = self._worker.deadlines.load
        columns = [orjson.dumps(params), orjson.dumps(sampling_params)]
        with self._worker.reserved(self._source, seconds):
            self._exchange(self._host(seconds), {"do": "validate"}, columns, seconds)

    def start(self, context: RequestContext, params: dict[str, Any]) -> RemoteState:
        state = RemoteState(self, context, orjson.dumps(params))
        seconds = self._worker.deadlines.load
        with self._worker.reserved(self._source, seconds):
            self._start(state, self._host(seconds), seconds)
        return state

    def advancer(self, state: RemoteState) -> Callable[[int], object]:
        return state.told.append

    def rewind(self, state: RemoteState) -> None:
        self.check_rebuildable(state)
        state.told.append(-1 - len(state.context.history))

    def rebuild(self, state: RemoteState) -> None:
        self.check_rebuildable(state)
        state.process = None
        self._called = _nobody

    def check_rebuildable(self, state: RemoteState) -> None:
        if state.kept:
            raise StateLost(
                f"request {state.context.request_id!r}: {self.name} keeps state of its own that does not follow from "
                "the history, and it is gone or cannot follow; remove the request and add it again"
            )

    def begin(self, states: Sequence[RemoteState], logits: torch.Tensor | None) -> bool:
        # Who waits for a worker while it holds others, waits for one who waits for it.
        self._begun = self._worker.lock.acquire(blocking=False)
        if self._begun:
            self._begin(states, logits)
        return self._begun

    def abandon(self) -> None:
        if self._begun:
            self._begun = False
            self._worker.misunderstood(self._source, "an answer that nobody waits for")
            self._worker.lock.release()

    def edit(self, states: Sequence[RemoteState]) -> Edits:
        def take(_: dict[str, Any], columns: Sequence[memoryview]) -> Edits:
            edits = Edits.from_columns(columns, len(states), states[0].context.vocab_size)
            most = _MOST_EDITS_A_ROW * len(states)
            if len(edits) > most and len(edits := edits.merged()) > most:
                message = f"processor {self.name}: {len(edits)} edits in a call of which {most} are taken"
                advice = f"{_MOST_EDITS_A_ROW} a row; say in one edit what is to be allowed"
                raise ProcessorFailed(f"{message}, {advice}", processor=self.name)
            return edits

        return self._call(states, None, take)

    def process(self, states: Sequence[RemoteState], logits: torch.Tensor) -> torch.Tensor:
        def take(header: dict[str, Any], _: Sequence[memoryview]) -> None:
            if kept := set(header["kept"]):
                for state in states:
                    state.kept = state.kept or state.number in kept

        self._call(states, logits, take)
        assert self._handed is not None  # noqa: S101 - it was begun
        return self._handed

    def scratch(self, rows: int, like: torch.Tensor) -> torch.Tensor:
        return self._memory.rows(rows, like) if like.device.type == "cpu" else super().scratch(rows, like)

    def borrow(self, region: Region | None) -> None:
        self._memory.borrow(region)

    def forget(self, state: RemoteState) -> None:
        """The request is gone."""
        if state.process is not None:
            self._worker.forget(self._number, state.number)

    def __del__(self) -> None:
        if getattr(self, "_process", None) is not None:
            self._worker.forget(self._number, None)

    def _host(self, seconds: float) -> WorkerProcess:
        """The worker's process, which has the processor, or is given it within these seconds."""
        self._worker.quarantine.check(self._worker.domain, self._source.key, self.name)
        process = self._worker.process()
        if process is not self._process:
            shipped = self._payload
            header: dict[str, Any] = {
                "do": "host",
                "digest": shipped.digest,
                "python": shipped.python,
                "dill": shipped.dill,
            }
            gpu = self._worker.gpu
            if gpu is not None and process.uses_gpu:
                header["gpu"] = [gpu.cuda.device.index, gpu.cuda.uuid.hex()]
            reply, _ = self._exchange(process, header, [shipped.data], seconds)
            if gpu is not None and process.uses_gpu and "no_gpu" in reply:
                gpu.refused(self.domain, process, reply["no_gpu"])
            self.reads_logits, self.unpickled = bool(reply.get("reads_logits")), bool(reply.get("unpickled"))
            self.argmax_invariant = bool(reply.get("argmax_invariant"))
            self.takes_drafts = bool(reply.get("takes_drafts"))
            self._process = process
            self._called = _nobody
        return process

    def _start(self, state: RemoteState, process: WorkerProcess, seconds: float) -> None:
        """Have the state built from the history, within these seconds."""
        self.check_rebuildable(state)
        context = state.context
        header = {
            "do": "start",
            "state": state.number,
            "request_id": context.request_id,
            "vocab_size": context.vocab_size,
            "tokenizer_id": context.tokenizer_id,
            "eos_token_ids": context.eos_token_ids,
            "max_requests": context.max_requests,
            "prompt": context.history.prompt_length,
        }
        token_ids = context.history.token_ids.astype("<i4", copy=False).tobytes()
        columns = [state.params, orjson.dumps(context.sampling_params), token_ids]
        reply, _ = self._exchange(process, header, columns, seconds)
        self.argmax_invariant = bool(reply.get("argmax_invariant"))  # which an instance may tell, that is made now
        state.process = process
        state.told.clear()

    def _exchange(
        self,
        process: WorkerProcess,
        header: dict[str, Any],
        columns: Sequence[bytes],
        seconds: float,
        descriptors: Sequence[int] = (),
    ) -> tuple[dict[str, Any], list[memoryview]]:
        header["processor"] = self._number
        self._worker.send(process, self._source, header, columns, descriptors, seconds=seconds)
        return self._worker.receive(process, self._source, seconds=seconds)

    def _ask(self, process: WorkerProcess, header: dict[str, Any], descriptors: Sequence[int]) -> None:
        self._exchange(process, header, (), self._worker.deadlines.call, descriptors)

    def _begin(self, states: Sequence[RemoteState], logits: torch.Tensor | None) -> None:
        """Begin a call; what is raised is raised by `_call`."""
        self._not_begun, self._handed, self.failed = None, None, {}
        try:
            # What a new process must be given first is not to keep the step waiting any longer than a call.
            until = time.monotonic() + self._worker.deadlines.call
            process = self._host(self._worker.deadlines.call)
            header: dict[str, Any] = {"do": "edit" if logits is None else "process", "processor": self._number}
            if self._called() is not states:
                self._called = _nobody  # until the process has answered
                self._restart(states, process, until)
                header["states"] = [state.number if state.process is process else 0 for state in states]
            descriptors: Sequence[int] = ()
            drafts = [state.context.history.draft_tokens for state in states]
            if any(drafts):
                header["drafts"] = drafts
            if self.drafts:
                header["drafts_before"] = [list(before) for before in self.drafts]
            if logits is None:
                header["vocab_size"] = states[0].context.vocab_size
            else:
                ask = partial(self._ask, process)
                self._handed, descriptors = self._memory.hand_over(logits, process, header, ask)
            counts, told = take_told(states)
            if counts.count(1) != len(counts):
                header["counts"] = counts
            column = struct.pack(f"<{len(told)}i", *told)
            seconds = self._worker.deadlines.call
            self._worker.send(process, self._source, header, [column], descriptors, seconds=seconds)
        except BaseException as error:  # noqa: BLE001 - raised again where the call ends
            self._not_begun = error

    def _restart(self, states: Sequence[RemoteState], process: WorkerProcess, until: float) -> None:
        """Build what the process does not have; `failed` tells which states could not be built."""
        failed: dict[int, BaseException] = {}
        late = ProcessorTimedOut(
            f"processor {self.name}: its worker was lost, and there was no time to rebuild all states"
        )
        for place, state in enumerate(states):
            if state.process is process:
                continue
            try:
                if (seconds := until - time.monotonic()) <= 0:
                    raise late
                self._start(state, process, seconds)
            except LogitportError as error:
                if error is not late and isinstance(error, (WorkerLost, ProcessorTimedOut)):
                    raise
                state.process = None
                state.told.clear()
                failed[place] = error.with_traceback(None)  # or it keeps this, and its memory
        self.failed = failed

    def _call(
        self,
        states: Sequence[RemoteState],
        logits: torch.Tensor | None,
        take: Callable[[dict[str, Any], Sequence[memoryview]], _Taken],
    ) -> _Taken:
        """Take the worker's answer to a call, which is begun unless it was. What makes no sense costs the worker."""
        if not self._begun:
            self._worker.reserve(self._source, self._worker.deadlines.call)
            self._begin(states, logits)
        try:
            if self._not_begun is not None:
                raise self._not_begun
            assert self._process is not None  # noqa: S101 - it was begun
            header, columns = self._worker.receive(self._process, self._source, seconds=self._worker.deadlines.call)
            self._worker.quarantine.went_well(self._worker.domain, self._source.key)
            if not self.failed and isinstance(states, States):
                self._called = ref(states)
            try:
                self._take_failed(header["failed"], len(states))
                return take(header, columns)
            except (AttributeError, KeyError, IndexError, TypeError, ValueError) as error:
                raise self._worker.misunderstood(self._source, f"an answer that is none: {error}") from None
        finally:
            self._begun = False
            self._not_begun = None
            self._worker.lock.release()

    def _take_failed(self, told: dict[str, Any], rows: int) -> None:
        failed = dict(self.failed)
        for key, error in told.items():
            place = int(key)
            if not 0 <= place < rows:
                raise ValueError(f"row {place} of {rows} failed")
            failed[place] = self._worker.error(self._source, error)
        self.failed = failed
