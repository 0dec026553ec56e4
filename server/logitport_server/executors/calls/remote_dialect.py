"""A processor in a worker, as the session that uses it calls it."""

from __future__ import annotations

import struct
import time
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import ref

import orjson

from logitport.core.edits import EditColumns, Edits
from logitport.errors import ProcessorFailed, StateLost
from logitport_server.executors.calls.admission_runner import AdmissionRunner
from logitport_server.executors.calls.processor_loading import Loads, WorkerLoader
from logitport_server.executors.calls.remote_state import RemoteState, numbers
from logitport_server.executors.calls.shared_rows import SharedRows
from logitport_server.executors.calls.worker_calls import WorkerCalls
from logitport_server.worker import messages
from logitport_server.worker.event_column import decode_events
from logitport_session.dialects import Dialect, RequestContext, check_torch
from logitport_session.dialects.base import States
from logitport_session.trust.isolation import RemoteCall

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    import torch

    from logitport_server.executors.calls.domain_workers import DomainWorkers
    from logitport_server.executors.worker_processes.worker_process import WorkerProcess
    from logitport_session.processor_sources.source import Source
    from logitport_session.shared_memory.regions import Region

_EDIT_COLUMNS = len(EditColumns._fields)
# A reply could hold millions of edits, and each takes this process microseconds and memory.
_MAX_EDITS_PER_ROW = 64


def _no_states() -> None:
    pass


class RemoteDialect(Dialect):
    """Calls a processor in the worker of its trust domain.

    A worker process that ended is restarted at the next call: the new process loads the processor again and builds the
    state of every request from its history. A state that is not a function of the history is lost with the process.

    `post` needs the lock of `worker`.

    Attributes:
        source: the processor.
        worker: runs the calls.
        unpickled: whether the worker unpickled the class; False if it had the class already.
    """

    isolated = True
    run_calls = WorkerCalls

    def __init__(self, source: Source, workers: DomainWorkers) -> None:
        super().__init__(None, source.display_name, shipped=True)
        self.source = source
        self._number = next(numbers)
        # Weak reference to the state list that the process already holds, for the load of the processor in which it was
        # sent. The list is resent only when one of them changes.
        self._sent_states: Callable[[], States | None] = _no_states
        self._sent_loading: object = None
        loads = Loads()
        self._calls = WorkerLoader(source, self._number, workers.worker(source.key), loads)
        self.worker = self._calls.worker
        self.domain = self.worker.domain
        self._memory = SharedRows(self.worker.gpu, self.domain)
        self._admission = AdmissionRunner(source, self._number, workers, loads)
        self._admission.load(self._calls)
        if loads.last.reads_logits:
            check_torch(self.name)  # the worker may run in another Python, which has torch
        self.reads_logits, self.takes_drafts = loads.last.reads_logits, loads.last.takes_drafts
        self.argmax_invariant, self.unpickled = loads.last.argmax_invariant, loads.last.unpickled
        declared = loads.last.denies_without
        self.denies_without = None if declared is None else tuple(declared)
        self.worker.dialects.add(self)

    def validate(
        self,
        params: dict[str, Any],
        sampling_params: dict[str, Any],
        caller: Hashable = None,  # noqa: ARG002
    ) -> None:
        self._admission.validate(self._calls, [orjson.dumps(params), orjson.dumps(sampling_params)])

    def start(self, context: RequestContext, params: dict[str, Any]) -> RemoteState:
        state = RemoteState(context, orjson.dumps(params), on_release=self._release)
        if self._admission.on_trial:
            move = partial(self._move, state)
            self._admission.try_start(self._calls, move, self._start_call(state))
        if state.loaded is None:
            with self.worker.reserved(self.source, self.worker.load_seconds):
                self._start(state)
        return state

    def token_callback(self, state: RemoteState) -> Callable[[int], object]:
        return state.history_events.append

    def rewind(self, state: RemoteState) -> None:
        self.check_rebuildable(state)
        state.history_events.append(-1 - len(state.context.history))

    def rebuild(self, state: RemoteState) -> None:
        self.check_rebuildable(state)
        state.loaded = None
        self._sent_states = _no_states

    def check_rebuildable(self, state: RemoteState) -> None:
        if not state.rebuildable:
            raise StateLost(
                f"request {state.context.request_id!r}: {self.name} keeps state of its own that does not follow from "
                "the history, and this state is lost or outdated; remove the request and add it again"
            )

    def edit(self, states: Sequence[RemoteState]) -> Edits:
        return self._call(states, None)  # type: ignore[no-any-return] # the result of `_decode_edits`

    def process(self, states: Sequence[RemoteState], logits: torch.Tensor) -> torch.Tensor:
        return self._call(states, logits)  # type: ignore[no-any-return] # the logits that were shared

    def post(self, call: RemoteCall, seconds: float) -> None:
        """Post a call, after what it needs: the processor and the states that the process lacks.

        Blocks only to open memory of a GPU, for the given time. An error ends the call.
        """
        try:
            process = self._calls.post(partial(self._load_failed, call), seconds)
            state_numbers = self._post_states(call)
            message, shared, descriptors = self._message(call, process, seconds)
            message.states = state_numbers
            counts: list[int] = []
            events: list[int] = []
            drafts: list[int] = []
            for state in call.states:
                counts.append(len(state.history_events))
                events += state.history_events
                state.history_events.clear()
                drafts.append(state.context.history.draft_tokens)
            if any(drafts):
                message.drafts = drafts
            if counts.count(1) != len(counts):
                message.counts = counts
            columns = [struct.pack(f"<{len(events)}i", *events)]
            expected = messages.EditReply if shared is None else messages.ProcessReply
            on_reply = partial(self._finish, call, shared)
            on_error = partial(self._fail_in_worker, call)
            self.worker.post(self.source, message, columns, expected, on_reply, on_error, descriptors)
        except BaseException as error:  # noqa: BLE001 - the caller finds it in the call
            for state in call.states:  # their events may be lost
                state.loaded = None
            call.splittable = False
            self._fail(call, error)

    def scratch(self, rows: int, like: torch.Tensor) -> torch.Tensor:
        return self._memory.rows(rows, like) if like.device.type == "cpu" else super().scratch(rows, like)

    def borrow(self, region: Region | None) -> None:
        self._memory.borrow(region)

    def _release(self, state: RemoteState) -> None:
        self.worker.states.pop(state.number, None)
        if state.loaded is not None:
            self.worker.release(self._number, state.number)

    def _move(self, state: RemoteState, kept: WorkerLoader, reply: messages.StartReply) -> None:
        """Run the calls in the worker that has this state."""
        self._started(reply)
        self.worker.dialects.discard(self)
        self._calls, self.worker = kept, kept.worker
        self.worker.dialects.add(self)
        if kept.process is not None and kept.process.uses_gpu:
            kept.uses_gpu, kept.process = True, None  # loaded again, with the GPU
            return
        self.worker.states[state.number] = state.context
        state.loaded = kept.loading

    def _start(self, state: RemoteState) -> None:
        """Start a request in the worker for calls."""
        seconds, at_admission = self.worker.admission_time(besides=state.context)
        start, began = self._start_call(state), time.monotonic()
        reply = self._calls.exchange(*start, messages.StartReply, seconds, at_admission=at_admission)
        self._admission.record_start(self._calls, time.monotonic() - began)
        self._started(reply)
        self.worker.states[state.number] = state.context
        state.loaded = self._calls.loading

    def _load_failed(self, call: RemoteCall, error: BaseException) -> None:
        """End a call, because the processor that it needs could not be loaded."""
        self._calls.process = None
        call.splittable = False
        call.fail(error)

    def _start_call(self, state: RemoteState) -> tuple[messages.Start, Sequence[bytes]]:
        """Return the message that builds a state from its history, and its columns."""
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
        return call, [state.params, orjson.dumps(context.sampling_params), token_ids]

    def _started(self, reply: messages.StartReply) -> None:
        self.argmax_invariant = reply.argmax_invariant  # only the new instance may have it

    def _post_states(self, call: RemoteCall) -> list[int] | None:
        """Post the start of all states that the process lacks.

        Returns:
            The number of each row's state, 0 for a row that has failed; None if the process already holds this list.
        """
        if self._sent_states() is call.states and self._sent_loading is self._calls.loading:
            return None
        self._sent_states = _no_states  # until the process has answered
        state_numbers = []
        for row, state in enumerate(call.states):
            if state.loaded is not self._calls.loading:
                self._post_start(call, row, state)
            state_numbers.append(state.number if state.loaded is self._calls.loading else 0)
        return state_numbers

    def _post_start(self, call: RemoteCall, row: int, state: RemoteState) -> None:
        def failed(error: BaseException) -> None:
            state.loaded = None
            state.history_events.clear()
            for index in range(row, len(call.states)):  # draft rows share a state
                if call.states[index] is state:
                    # Its frames would keep this object and its memory alive.
                    call.failed[index] = error.with_traceback(None)

        try:
            message, columns = self._start_call(state)
        except StateLost as error:
            failed(error)
            return
        self.worker.post(
            self.source, message, columns, messages.StartReply, lambda reply, _: self._started(reply), failed
        )
        self.worker.states[state.number] = state.context
        state.loaded = self._calls.loading
        state.history_events.clear()

    def _message(
        self, call: RemoteCall, process: WorkerProcess, seconds: float
    ) -> tuple[messages.StepCall, torch.Tensor | None, Sequence[int]]:
        """Return the message of a call, the logits in memory shared with the worker, and descriptors to send."""
        if call.logits is None:
            vocab_size = call.states[0].context.vocab_size
            return messages.Edit(processor=self._number, vocab_size=vocab_size), None, ()
        open_on_gpu = partial(self._open_on_gpu, seconds=seconds)
        shared, placement, descriptors = self._memory.share(call.logits, process, self._calls.loading, open_on_gpu)
        before = [list(token_ids) for token_ids in self.drafts]
        message = messages.Process(processor=self._number, logits=placement, drafts_before=before)
        return message, shared, descriptors

    def _open_on_gpu(self, memory: messages.WorkerMemory, descriptor: int, *, seconds: float) -> None:
        call = messages.OpenGpuMemory(processor=self._number, memory=memory)
        self.worker.exchange(self.source, call, (), messages.EmptyReply, seconds, [descriptor])

    def _finish(
        self,
        call: RemoteCall,
        shared: torch.Tensor | None,
        reply: messages.EditReply | messages.ProcessReply,
        columns: Sequence[memoryview],
    ) -> None:
        """End a call with its reply. Raises what `Worker.post` describes."""
        call.seconds = self.worker.reply_seconds
        for row, error in reply.failed.items():
            if row >= len(call.states):
                raise ValueError(f"row {row} of {len(call.states)} failed")
            call.failed.setdefault(row, self.worker.processor_error(self.source, error))
        if isinstance(reply, messages.ProcessReply):
            lost = set(reply.not_rebuildable)
            for state in call.states if lost else ():
                state.rebuildable = state.rebuildable and state.number not in lost
            result: Any = shared
        else:
            result = self._decode_edits(columns[:_EDIT_COLUMNS], call.states)
            call.events = decode_events(columns[_EDIT_COLUMNS:], len(call.states))
        if call.error is None:
            if not call.failed and isinstance(call.states, States):
                self._sent_states, self._sent_loading = ref(call.states), self._calls.loading
            call.result, call.ended = result, time.perf_counter()

    def _fail_in_worker(self, call: RemoteCall, error: BaseException) -> None:
        call.seconds = self.worker.reply_seconds
        self._fail(call, error)

    def _fail(self, call: RemoteCall, error: BaseException) -> None:
        self._sent_states = _no_states
        if call.logits is not None:
            self._memory.forget()  # the worker may not have mapped what came with the call
        call.fail(error)

    def _decode_edits(self, columns: Sequence[memoryview], states: Sequence[RemoteState]) -> Edits:
        edits = Edits.from_columns(columns, len(states), states[0].context.vocab_size)
        limit = _MAX_EDITS_PER_ROW * len(states)
        if len(edits) > limit and len(edits := edits.merged()) > limit:
            raise ProcessorFailed(
                f"processor {self.name}: {len(edits)} edits in a call, where all deny calls of a row count as one, and "
                f"so do all its bias calls; the limit is {limit} ({_MAX_EDITS_PER_ROW} a row): call allow once with "
                "the ids that all of them keep, and bitmask once with the bits that all of them set",
                processor=self.name,
            )
        return edits

    def _call(self, states: Sequence[RemoteState], logits: torch.Tensor | None) -> Any:
        """Make one call, and wait for its end."""
        call = RemoteCall(self, states, logits)
        with WorkerCalls([call], self.worker.deadlines.call) as running:
            running.wait()
        self.failed, self.events = call.failed, call.events
        if call.error is not None:
            raise call.error
        return call.result
