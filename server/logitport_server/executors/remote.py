"""A processor in a worker, as the session that uses it calls it."""

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
from logitport_server.dialects.base import States
from logitport_server.dialects.failures import WorkerLost
from logitport_server.executors.remote_state import RemoteState, drain_events, numbers
from logitport_server.executors.shared_rows import SharedRows
from logitport_server.worker import messages

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    import torch

    from logitport_server.executors.worker import Worker
    from logitport_server.executors.zygote import WorkerProcess
    from logitport_server.registry.source import Source
    from logitport_server.shared_memory.regions import Region

_Reply = TypeVar("_Reply", bound=messages.Reply)
_StepReply = TypeVar("_StepReply", messages.EditReply, messages.ProcessReply)
_Result = TypeVar("_Result")

# A reply could hold millions of edits, and each takes this process microseconds and memory.
_MAX_EDITS_PER_ROW = 64


def _no_states() -> None:
    pass


class RemoteDialect(Dialect):
    """Calls a processor in the worker of its trust domain.

    A worker process that ended is replaced at the next call: the new process loads the processor again and builds the
    state of every request from its history. A state that is not a function of the history is lost with the process.

    Attributes:
        unpickled: whether the worker unpickled the class; False if it had the class already.
    """

    isolated = True

    def __init__(self, source: Source, worker: Worker) -> None:
        super().__init__(None, source.display_name, shipped=True)
        assert source.payload is not None  # noqa: S101 - an installed processor has no worker
        self._source, self._payload = source, source.payload
        self._worker = worker
        self.domain = worker.domain
        self._number = next(numbers)
        self._process: WorkerProcess | None = None
        # Weak reference to the state list that the process already holds. The list is resent only when it changes.
        self._sent_states: Callable[[], States | None] = _no_states
        self._memory = SharedRows(worker.gpu, worker.domain)
        self.unpickled = False
        # Whether `begin` has begun a call, and the exception that prevented it.
        self._begun = False
        self._begin_error: BaseException | None = None
        self._shared_logits: torch.Tensor | None = None
        with worker.reserved(source, worker.deadlines.load):
            self._host(worker.deadlines.load)
        worker.dialects.add(self)

    def validate(
        self,
        params: dict[str, Any],
        sampling_params: dict[str, Any],
        caller: Hashable = None,  # noqa: ARG002
    ) -> None:
        seconds = self._worker.deadlines.load
        columns = [orjson.dumps(params), orjson.dumps(sampling_params)]
        with self._worker.reserved(self._source, seconds):
            process = self._host(seconds)
            self._exchange(process, messages.Validate(processor=self._number), columns, messages.EmptyReply, seconds)

    def start(self, context: RequestContext, params: dict[str, Any]) -> RemoteState:
        state = RemoteState(context, orjson.dumps(params), on_release=self._release)
        seconds = self._worker.deadlines.load
        with self._worker.reserved(self._source, seconds):
            self._start(state, self._host(seconds), seconds)
        return state

    def token_callback(self, state: RemoteState) -> Callable[[int], object]:
        return state.history_events.append

    def rewind(self, state: RemoteState) -> None:
        self.check_rebuildable(state)
        state.history_events.append(-1 - len(state.context.history))

    def rebuild(self, state: RemoteState) -> None:
        self.check_rebuildable(state)
        state.process = None
        self._sent_states = _no_states

    def check_rebuildable(self, state: RemoteState) -> None:
        if not state.rebuildable:
            raise StateLost(
                f"request {state.context.request_id!r}: {self.name} keeps state of its own that does not follow from "
                "the history, and this state is lost or outdated; remove the request and add it again"
            )

    def begin(self, states: Sequence[RemoteState], logits: torch.Tensor | None) -> bool:
        # Never block on a second worker while holding one: that deadlocks.
        self._begun = self._worker.lock.acquire(blocking=False)
        if self._begun:
            self._begin(states, logits)
        return self._begun

    def abandon(self) -> None:
        if self._begun:
            self._begun = False
            self._worker.protocol_error(self._source, "an answer to an abandoned call")
            self._worker.lock.release()

    def edit(self, states: Sequence[RemoteState]) -> Edits:
        def decode(_: messages.EditReply, columns: Sequence[memoryview]) -> Edits:
            edits = Edits.from_columns(columns, len(states), states[0].context.vocab_size)
            limit = _MAX_EDITS_PER_ROW * len(states)
            if len(edits) > limit and len(edits := edits.merged()) > limit:
                raise ProcessorFailed(
                    f"processor {self.name}: {len(edits)} edits in a call, the limit is {limit} "
                    f"({_MAX_EDITS_PER_ROW} a row); combine them, for example all allowed ids in one edit",
                    processor=self.name,
                )
            return edits

        return self._call(states, None, messages.EditReply, decode)

    def process(self, states: Sequence[RemoteState], logits: torch.Tensor) -> torch.Tensor:
        def decode(reply: messages.ProcessReply, _: Sequence[memoryview]) -> None:
            if lost := set(reply.not_rebuildable):
                for state in states:
                    state.rebuildable = state.rebuildable and state.number not in lost

        self._call(states, logits, messages.ProcessReply, decode)
        assert self._shared_logits is not None  # noqa: S101 - set by `_begin`
        return self._shared_logits

    def scratch(self, rows: int, like: torch.Tensor) -> torch.Tensor:
        return self._memory.rows(rows, like) if like.device.type == "cpu" else super().scratch(rows, like)

    def borrow(self, region: Region | None) -> None:
        self._memory.borrow(region)

    def __del__(self) -> None:
        if getattr(self, "_process", None) is not None:
            self._worker.release(self._number, None)

    def _release(self, state: RemoteState) -> None:
        if state.process is not None:
            self._worker.release(self._number, state.number)

    def _host(self, seconds: float) -> WorkerProcess:
        """Return the worker's process. A process without the processor loads it within these seconds."""
        self._worker.quarantine.check(self._worker.domain, self._source.key, self.name)
        process = self._worker.process()
        if process is not self._process:
            gpu = self._worker.gpu
            uses_gpu = gpu is not None and process.uses_gpu
            shipped = self._payload
            call = messages.Host(
                processor=self._number,
                name=self.name,
                digest=shipped.digest,
                python=shipped.python,
                dill=shipped.dill,
                gpu=(str(gpu.cuda.device), gpu.cuda.uuid.hex()) if gpu is not None and uses_gpu else None,
            )
            reply, _ = self._exchange(process, call, [shipped.data], messages.HostReply, seconds)
            if gpu is not None and uses_gpu and reply.gpu_error:
                gpu.disable(self.domain, process, reply.gpu_error)
            self.reads_logits, self.unpickled = reply.reads_logits, reply.unpickled
            self.argmax_invariant, self.takes_drafts = reply.argmax_invariant, reply.takes_drafts
            self._process = process
            self._sent_states = _no_states
        return process

    def _start(self, state: RemoteState, process: WorkerProcess, seconds: float) -> None:
        """Build the state in the process, from the history, within these seconds."""
        self.check_rebuildable(state)
        context = state.context
        call = messages.Start(
            processor=self._number,
            state=state.number,
            request_id=context.request_id,
            prompt_length=context.history.prompt_length,
            vocab_size=context.vocab_size,
            tokenizer_id=context.tokenizer_id,
            eos_token_ids=context.eos_token_ids,
            max_requests=context.max_requests,
        )
        token_ids = context.history.token_ids.astype("<i4", copy=False).tobytes()
        columns = [state.params, orjson.dumps(context.sampling_params), token_ids]
        reply, _ = self._exchange(process, call, columns, messages.StartReply, seconds)
        self.argmax_invariant = reply.argmax_invariant  # an instance made now may know better
        state.process = process
        state.history_events.clear()

    def _exchange(
        self,
        process: WorkerProcess,
        call: messages.WorkerCall,
        columns: Sequence[bytes],
        expected: type[_Reply],
        seconds: float,
        descriptors: Sequence[int] = (),
    ) -> tuple[_Reply, list[memoryview]]:
        self._worker.send(process, self._source, call, columns, descriptors, seconds=seconds)
        return self._worker.receive(process, self._source, expected, seconds=seconds)

    def _open_on_gpu(self, process: WorkerProcess, memory: messages.WorkerMemory, descriptor: int) -> None:
        call = messages.OpenGpuMemory(processor=self._number, memory=memory)
        self._exchange(process, call, (), messages.EmptyReply, self._worker.deadlines.call, [descriptor])

    def _begin(self, states: Sequence[RemoteState], logits: torch.Tensor | None) -> None:
        """Begin a call. `_call` raises the exception if that fails."""
        self._begin_error, self._shared_logits, self.failed = None, None, {}
        try:
            # Loading and starting in a new process share the deadline of the call: a step must not wait longer.
            deadline = time.monotonic() + self._worker.deadlines.call
            process = self._host(self._worker.deadlines.call)
            state_numbers = self._numbers_to_send(states, process, deadline)
            call, descriptors = self._step_call(states, logits, process)
            call.states = state_numbers
            drafts = [state.context.history.draft_tokens for state in states]
            if any(drafts):
                call.drafts = drafts
            counts, events = drain_events(states)
            if counts.count(1) != len(counts):
                call.counts = counts
            column = struct.pack(f"<{len(events)}i", *events)
            seconds = self._worker.deadlines.call
            self._worker.send(process, self._source, call, [column], descriptors, seconds=seconds)
        except BaseException as error:  # noqa: BLE001 - raised by `_call`
            self._begin_error = error

    def _step_call(
        self, states: Sequence[RemoteState], logits: torch.Tensor | None, process: WorkerProcess
    ) -> tuple[messages.StepCall, Sequence[int]]:
        """Return the message of a call, without the fields that edits and logits share, and its descriptors."""
        if logits is None:
            return messages.Edit(processor=self._number, vocab_size=states[0].context.vocab_size), ()
        shared, placement, descriptors = self._memory.share(logits, process, partial(self._open_on_gpu, process))
        self._shared_logits = shared
        before = [list(token_ids) for token_ids in self.drafts]
        return messages.Process(processor=self._number, logits=placement, drafts_before=before), descriptors

    def _numbers_to_send(
        self, states: Sequence[RemoteState], process: WorkerProcess, deadline: float
    ) -> list[int] | None:
        """Return the states' numbers after building what the process lacks; None if it already holds this list."""
        if self._sent_states() is states:
            return None
        self._sent_states = _no_states  # until the process has answered
        self._restart(states, process, deadline)
        return [state.number if state.process is process else 0 for state in states]

    def _restart(self, states: Sequence[RemoteState], process: WorkerProcess, deadline: float) -> None:
        """Build the states that the process lacks. Sets `failed` for those that fail."""
        failed: dict[int, BaseException] = {}
        late = ProcessorTimedOut(
            f"processor {self.name}: its worker was lost, and there was no time to rebuild all states"
        )
        for row, state in enumerate(states):
            if state.process is process:
                continue
            try:
                if (seconds := deadline - time.monotonic()) <= 0:
                    raise late
                self._start(state, process, seconds)
            except LogitportError as error:
                if error is not late and isinstance(error, (WorkerLost, ProcessorTimedOut)):
                    raise
                state.process = None
                state.history_events.clear()
                failed[row] = error.with_traceback(None)  # its frames would keep this object and its memory alive
        self.failed = failed

    def _call(
        self,
        states: Sequence[RemoteState],
        logits: torch.Tensor | None,
        expected: type[_StepReply],
        decode: Callable[[_StepReply, Sequence[memoryview]], _Result],
    ) -> _Result:
        """Begin a call unless `begin` did, and take its reply. An invalid reply ends the worker's process."""
        if not self._begun:
            self._worker.reserve(self._source, self._worker.deadlines.call)
            self._begin(states, logits)
        try:
            if self._begin_error is not None:
                raise self._begin_error
            assert self._process is not None  # noqa: S101 - set by `_begin`
            seconds = self._worker.deadlines.call
            reply, columns = self._worker.receive(self._process, self._source, expected, seconds=seconds)
            if not self.failed and isinstance(states, States):
                self._sent_states = ref(states)
            try:
                self._record_failed(reply.failed, len(states))
                return decode(reply, columns)
            except (IndexError, TypeError, ValueError) as error:
                raise self._worker.protocol_error(self._source, f"an invalid reply: {error}") from None
        finally:
            self._begun = False
            self._begin_error = None
            self._worker.lock.release()

    def _record_failed(self, errors: dict[int, messages.Error], rows: int) -> None:
        failed = dict(self.failed)
        for row, error in errors.items():
            if row >= rows:
                raise ValueError(f"row {row} of {rows} failed")
            failed[row] = self._worker.processor_error(self._source, error)
        self.failed = failed
