"""One engine's persistent batch: applies frames and fills in their replies. Independent of gRPC."""

from __future__ import annotations

import operator
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from logitport.compiled import core
from logitport.core import tensors
from logitport.core.cuda_ipc import open_cuda
from logitport.errors import (
    DuplicateRequest,
    InvalidArgument,
    InvalidLogits,
    LimitExceeded,
    LogitportError,
    to_proto,
)
from logitport.ops import PipelineStage
from logitport_proto import common_pb2, processing_pb2
from logitport_server import defects
from logitport_server.principals import ANONYMOUS, Party
from logitport_server.session.admission import Admission, check_limits, check_token_ids
from logitport_server.session.admission_trace import AdmissionTrace
from logitport_server.session.batch import StepBatch
from logitport_server.session.checked_calls import CheckedCalls
from logitport_server.session.columns import (
    StepColumns,
    StepLayout,
    pack_int32,
    unpack_int32,
    write_outcome,
)
from logitport_server.session.compiled_batch import CompiledBatch
from logitport_server.session.engine_programs import describe_chain, write_programs
from logitport_server.session.grouping import Row, Rows
from logitport_server.session.hosting import HostedProcessors
from logitport_server.session.lending import Lending
from logitport_server.session.outcome import StepOutcome
from logitport_server.session.pending_admissions import PendingAdmissions
from logitport_server.session.reply_deadlines import ReplyDeadlines
from logitport_server.session.step import RunChains
from logitport_server.session.step_time import Spending, StepTime
from logitport_server.shared_memory.regions import Regions, write_back
from logitport_server.turns import Released

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from logitport_core._core import PrincipalLock
    from logitport_server.config import ServerConfig
    from logitport_server.executors import Executor
    from logitport_server.principals import Principal
    from logitport_server.registry.registry import Registry
    from logitport_server.session.active_request import ActiveRequest
    from logitport_server.session.pending_admissions import Submit
    from logitport_server.session.step_counts import CompiledCounts
    from logitport_server.session.step_trace import StepTrace
    from logitport_server.shared_memory.regions import Region

# These fields are sent to workers with every request.
_MAX_EOS_TOKEN_IDS = 1024
_MAX_TOKENIZER_ID_LENGTH = 4096  # a path, perhaps

_NOTHING_PENDING: tuple[Rows, int, dict[ActiveRequest, Sequence[int]]] = (Rows(), 0, {})

# Rows times processors that run on the event loop: at most a millisecond, while other principals have sessions.
_MAX_SHORT_WORK = 128
# The same without other principals: at most 8 ms, in which no health check is answered. With a thread, a usual step of
# 256 rows took 14 % longer.
_MAX_SHORT_WORK_ALONE = 1024
# The same in the compiled core, in ids of the frame times processors: at most two milliseconds.
_MAX_SHORT_COMPILED_WORK = 1 << 14
# A processor's call for a new id takes about a quarter of its time for a row.
_WORK_OF_A_NEW_ID = 0.25


@dataclass(slots=True)
class Admitted:
    """Counts of a session's admissions.

    Attributes:
        replayed_requests: requests that came with ids that were generated before, or again for their slot: after a
            lost connection, a move, or a difference of histories.
        replayed_tokens: the ids of their histories.
        queue_seconds: how long each admission in the background has waited before it began.
    """

    replayed_requests: int = 0
    replayed_tokens: int = 0
    queue_seconds: list[float] = field(default_factory=list)


class EngineSession:
    """Requests by slot, each with its history and state.

    Not thread-safe: an engine's frames are processed one at a time. Admissions in the background run on other threads,
    where they use `HostedProcessors` and nothing else of the session; `add` takes their results.

    Args:
        opening: the message that opens it.
        registry: finds processors.
        executor: hosts them.
        device: where logits are processed that are not sent to workers.
        limits: the server's options.
        principal: the caller that opens it.
        submit: runs admissions in the background. Without it, all requests are admitted before the reply.

    Attributes:
        principal: the caller that opened it.
        reply_deadlines: the deadlines to state to the engine.
        spending: the time of the last step, or part of a step, by cause.
        trace: the span of its opening, as `Span.context`.
        step_trace: the record of the next step, or part of it, for its spans; None if it has none.
        first_refused: fields for log records about the first request that the last `add` has refused; {} for none.
    """

    def __init__(
        self,
        opening: processing_pb2.OpenSession,
        registry: Registry,
        executor: Executor,
        device: torch.device,
        limits: ServerConfig,
        principal: Principal = ANONYMOUS,
        submit: Submit | None = None,
    ) -> None:
        if opening.vocab_size < 1:
            raise InvalidArgument(f"vocab_size is {opening.vocab_size}; send the width of the logits, 1 or more")
        if opening.datatype not in tensors.DATATYPES:
            raise InvalidArgument(f"datatype is {opening.datatype!r}; write one of {', '.join(tensors.DATATYPES)}")
        if opening.max_requests < 0 or opening.max_draft_tokens < 0:
            raise InvalidArgument(
                f"max_requests is {opening.max_requests} and max_draft_tokens {opening.max_draft_tokens}; "
                "both must be 0 or more"
            )
        if opening.expected_requests < 0:
            raise InvalidArgument(f"expected_requests is {opening.expected_requests}; it must be 0 or more")
        if opening.max_draft_tokens > limits.max_draft_tokens:
            raise LimitExceeded(
                f"max_draft_tokens is {opening.max_draft_tokens}; the server accepts {limits.max_draft_tokens} per "
                "request and step: draft fewer, or raise --max-draft-tokens"
            )
        check_token_ids(opening.eos_token_ids, opening.vocab_size, "eos_token_ids")
        if len(opening.eos_token_ids) > _MAX_EOS_TOKEN_IDS or len(opening.tokenizer_id) > _MAX_TOKENIZER_ID_LENGTH:
            raise InvalidArgument(
                f"eos_token_ids has {len(opening.eos_token_ids)} ids and tokenizer_id {len(opening.tokenizer_id)} "
                f"characters; the limits are {_MAX_EOS_TOKEN_IDS} and {_MAX_TOKENIZER_ID_LENGTH}"
            )
        self.vocab_size = opening.vocab_size
        self.max_requests = min(
            opening.max_requests or limits.max_requests_per_session, limits.max_requests_per_session
        )
        # Until the first step: requests that are received, or not yet, and that take long to admit.
        self._expected_requests = min(opening.expected_requests, self.max_requests)
        self._engine = processing_pb2.OpenSession()
        self._engine.CopyFrom(opening)
        self._engine.max_requests = self.max_requests
        self.draft_token_limit = limits.max_draft_tokens
        self.regions = Regions(limits.max_region_bytes, open_cuda(device) if limits.share_device_memory else None)
        self._lending = Lending()
        self._datatype = opening.datatype
        self._limits = limits
        self._max_draft_tokens = opening.max_draft_tokens
        self.principal = principal
        self.trace: object = None
        self.step_trace: StepTrace | None = None
        self.first_refused: dict[str, str] = {}
        self._device, self._device_name = device, str(device)
        self._requests: dict[int, ActiveRequest] = {}
        # Length of the longest chain since the session last had no request.
        self._longest_chain = 0
        self._run_chains = PipelineStage.get(RunChains.name)
        self._compiled: CompiledBatch | None = None
        if core is not None and type(self._run_chains) is RunChains:  # a replacement gets all requests
            self._compiled = CompiledBatch(self.vocab_size, self._max_draft_tokens, limits)
        self._processors = HostedProcessors(registry, executor, principal)
        self._pending_admissions = PendingAdmissions(principal.name, submit, limits.max_message_bytes)
        # The batch of the last step; None after a change that makes it stale.
        self._batch: StepBatch | None = None
        self._batch_columns: tuple[bytes, ...] = ()
        # Of the last step: whether its replies include what processors print.
        self._wants_output = False
        # Of the last step: the rows that wait for their logits, the number of all its rows, and its drafts.
        self._pending: tuple[Rows, int, dict[ActiveRequest, Sequence[int]]] = _NOTHING_PENDING
        self._step_time = StepTime(limits.processor_timeout_seconds)
        self.spending = Spending()
        self._admitted = Admitted()
        self.reply_deadlines = ReplyDeadlines.of(limits, only_builtins=registry.has_only_builtins)

    def __len__(self) -> int:
        return len(self._requests)

    @property
    def pending(self) -> int:
        """Number of admissions that continue in the background, or are not reported yet."""
        return len(self._pending_admissions)

    @property
    def waiting(self) -> int:
        """Number of admissions in the background that have not begun."""
        return self._pending_admissions.waiting

    @property
    def load(self) -> int:
        """Number of requests that the session holds, or will hold soon."""
        return max(len(self) + self.pending, self._expected_requests)

    def may_take_long(self, frame: processing_pb2.Step, *, alone: bool) -> bool:
        """Whether a step may be slow, and must not run on the event loop.

        True if it runs code that a client shipped, or a processor that declares that it takes long, or if its work may
        be large. The work is estimated by the longest chain, without reading the columns.

        Args:
            frame: the step.
            alone: whether all sessions of the server belong to this session's principal.
        """
        rows = max(len(frame.row_requests) or len(frame.slots), len(frame.draft_token_ids))
        work = (rows + len(frame.new_token_ids) * _WORK_OF_A_NEW_ID) / 4 * max(1, self._longest_chain)
        limit = _MAX_SHORT_WORK_ALONE if alone else _MAX_SHORT_WORK
        return work > limit or self._processors.may_take_long

    def add(self, frame: processing_pb2.AddRequests, reply: processing_pb2.RequestsAdded) -> None:
        """Admit requests. A refused request does not affect the others.

        A frame for admissions in the background also reports those that have ended.
        """
        self.first_refused = {}
        reads_logits, pending = bytearray(), bytearray()
        shared = CheckedCalls()
        for addition in frame.requests:
            request, in_background = None, False
            trace = AdmissionTrace(addition, self.trace)
            with trace:
                try:
                    admission = self._check(addition)
                    in_background = frame.in_background and self._may_continue_in_background(admission, addition)
                    host, seconds = self._processors.host, self._limits.load_timeout_seconds
                    if in_background:
                        load = partial(admission.load, host, seconds, in_background=True)
                        self._pending_admissions.begin(admission, load, trace)
                    else:
                        admission.load(host, seconds, shared=shared)
                        request = self._finish(admission, trace)
                except LogitportError as error:
                    reply.failures.append(common_pb2.Failure(slot=addition.slot, error=to_proto(error)))
                    self._note_refused(trace, error)
            chain = reply.chains.add()
            if request is not None:
                describe_chain(request, chain)
                self._join(request, reply)
            reads_logits.append(request is not None and request.reads_logits)
            pending.append(in_background)
        reply.reads_logits = bytes(reads_logits)
        if any(pending):
            reply.pending = bytes(pending)
        if frame.in_background:
            self._report_ended(reply)

    def take_admitted(self) -> Admitted:
        """Return what was admitted since the last call."""
        admitted, self._admitted = self._admitted, Admitted()
        return admitted

    def open_region(self, frame: processing_pb2.OpenRegion) -> tuple[int, Region]:
        """Open memory to share with the engine; return its id and the region. Raises InvalidArgument, LimitExceeded."""
        region_id, region = self.regions.open(frame.size_bytes, frame.replaces)
        self._lending.opened(region, self._requests.values())
        return region_id, region

    def remove(self, frame: processing_pb2.RemoveRequests) -> None:
        """Drop requests and their state. A slot that is empty or has another generation is left unchanged."""
        self._check_size(frame)
        slots = unpack_int32(frame.slots, "RemoveRequests.slots")
        generations = unpack_int32(frame.generations, "RemoveRequests.generations", len(slots))
        for slot, generation in zip(slots, generations, strict=True):
            request = self._requests.get(slot)
            if request is not None and request.generation == generation:
                self._drop(slot)
            self._pending_admissions.cancel(slot, generation)
        if not self._requests:
            self._longest_chain = 0

    def get_programs(self, frame: processing_pb2.GetPrograms, reply: processing_pb2.Programs) -> None:
        """Send programs that the engine has to run. Raises UnknownProcessor, LimitExceeded."""
        write_programs(self._requests.values(), frame.digests, self._limits.max_message_bytes, reply)

    def step(self, frame: processing_pb2.Step, reply: processing_pb2.StepEdits) -> None:
        """Extend the histories by the sampled ids, and reply with the edits of the logits-free chains."""
        self._check_size(frame)
        self._expected_requests = 0
        batch = self._batch_for(frame)
        if self.step_trace is not None:
            self.step_trace.rows = len(batch.layout.rows)
            self.step_trace.requests = batch.traces
        columns = StepColumns.read(frame, batch.layout, self.vocab_size, self._limits.max_tokens_per_request)
        self._check_new_ids(columns, batch)
        compiled = None
        if batch.leaves_out and self._compiled is not None:
            compiled = self._compiled.step_partly(frame) if self.step_trace is None else None
            if compiled is None:
                batch = StepBatch(batch.layout, self._requests)
        self._wants_output = frame.wants_output
        outcome = self._begin_outcome()
        drafts = batch.synchronize(columns, outcome)
        self._step_time = StepTime(self._limits.processor_timeout_seconds)
        self._run_chains(batch.logits_free, drafts, self.vocab_size, None, outcome, self._step_time)
        if batch.has_engine_programs:
            parts = outcome.pack_around_programs(self.vocab_size)
        else:
            parts = [outcome.pack(self.vocab_size)]
        leaves_ids = all(part.leaves_every_row_an_id(self.vocab_size // len(parts)) for part in parts)
        denied_rows = [] if leaves_ids else outcome.all_denied(self.vocab_size)
        edits, *later = parts
        if compiled is not None:
            edits = edits.joined(compiled.edits)
            denied_rows = sorted(denied_rows + compiled.denied_rows)
            outcome.add_compiled(compiled.applied)
        reply.edits.CopyFrom(edits.to_proto())
        if later:
            reply.later_edits.extend(each.to_proto() for each in later)
        pending = batch.logits_reading(outcome)
        self._pending = (pending, len(batch.layout.rows), drafts)
        if pending:
            reply.logits_rows = pack_int32(row.index for row in pending)
        write_outcome(reply, outcome, denied_rows)
        self._follow_failures(outcome)
        reply.ended_admissions = self._pending_admissions.num_ended

    @property
    def is_compiled(self) -> bool:
        """Whether the compiled core runs the chains of all requests."""
        return self._compiled is not None and len(self._compiled) == len(self._requests)

    def is_short(self, data: bytes) -> bool:
        """Whether `step_compiled` may run on the event loop: whether it has little work, at most, with this frame."""
        return len(data) / 4 * max(1, self._longest_chain) <= _MAX_SHORT_COMPILED_WORK

    def step_compiled(
        self,
        data: bytes,
        seq: int,
        transport: str,
        *,
        should_move: bool,
        queued_seconds: float = 0.0,
        lock: PrincipalLock | None = None,
    ) -> bytes | None:
        """Do the same as `step` in the compiled core, if all requests are compiled and the step is usual.

        Returns the serialized reply. None if the frame is to be parsed, because it is another one or unusual; nothing
        has changed then. The arguments are those of `CompiledBatch.step`.
        """
        if self._compiled is None:
            return None
        reply = self._compiled.step(
            data,
            seq,
            transport,
            ended_admissions=self._pending_admissions.num_ended,
            should_move=should_move,
            queued_seconds=queued_seconds,
            lock=lock,
        )
        if reply is not None:
            self._expected_requests = 0
            self._pending = _NOTHING_PENDING
        return reply

    @property
    def compiled_server(self) -> CompiledBatch | None:
        """The compiled core if it can answer frames without Python for a while: if they are steps of `step_compiled`.

        None before the first step, and while the replies must state what happens to admissions in the background.
        """
        ready = self.is_compiled and not (self._expected_requests or self.pending or self._pending[0])
        return self._compiled if ready else None

    @property
    def compiled_activity(self) -> tuple[int, float]:
        """The number of steps that the compiled core has answered, and when the last ended, in monotonic seconds."""
        return self._compiled.activity if self._compiled is not None else (0, 0.0)

    def take_compiled_counts(self) -> CompiledCounts | None:
        """Return the counts of these steps since the last call; None if there was none. On any thread."""
        return self._compiled.take_counts() if self._compiled is not None else None

    def edit_logits(self, frame: processing_pb2.StepLogits, reply: processing_pb2.StepLogitsEdited) -> None:
        """Process the pending rows of the last step, for which its reply requested logits."""
        pending, step_rows, drafts = self._pending
        if not pending:
            raise InvalidArgument("StepLogits: the last step requested no logits, or they were sent already")
        in_region = frame.logits.HasField("region")
        whole_step = in_region and frame.logits.shape[:1] == [step_rows]
        with self.regions.lent(frame.logits):
            with Released():
                received = self._decode(frame.logits, step_rows if whole_step else len(pending))
                logits = received.to(self._device, non_blocking=True)  # blocks nevertheless if the memory is not pinned
            self._pending = _NOTHING_PENDING
            if self.step_trace is not None:
                self.step_trace.rows = len(pending)
            outcome = self._begin_outcome()
            region = self.regions.region(frame.logits)
            if region is not None and logits is received:
                self._lending.step(region, pending)
            if whole_step:
                rows = pending
            else:
                renumbered = (Row(index, row.request, row.draft_offset) for index, row in enumerate(pending))
                rows = Rows(renumbered, greedy=pending.greedy)
            self._run_chains(rows, drafts, self.vocab_size, logits, outcome, self._step_time)
            with Released():
                if not in_region:
                    tensors.write(reply.logits, logits)
                elif logits is not received:
                    write_back(received, logits, [row.index for row in rows])
        step_index = {row.index: pending_row.index for row, pending_row in zip(rows, pending, strict=True)}
        write_outcome(reply, outcome, [step_index[index] for index in outcome.all_denied(self.vocab_size)])

    def apply(
        self, tensor: common_pb2.Tensor, num_rows: int, rows_per_request: int, reply: processing_pb2.ApplyResponse
    ) -> None:
        """Process `num_rows` rows of logits: those of slot 0, then those of slot 1, ...; a slot may be empty."""
        with Released():
            logits = self._decode(tensor, num_rows).to(self._device)
        outcome = self._begin_outcome()
        requests = ((index, self._requests.get(index // rows_per_request)) for index in range(num_rows))
        greedy = all(request.greedy for request in self._requests.values())
        rows = Rows((Row(index, request) for index, request in requests if request is not None), greedy=greedy)
        self._run_chains(rows, {}, self.vocab_size, logits, outcome, self._step_time)
        with Released():
            tensors.write(reply.logits, logits)
        write_outcome(reply, outcome, outcome.all_denied(self.vocab_size))

    def _follow_failures(self, outcome: StepOutcome) -> None:
        """Leave failed requests to Python, and give those that have recovered back to the compiled core."""
        changed = bool(outcome.failures)
        if self._compiled is not None:
            for slot in outcome.failures:
                if (request := self._requests.get(slot)) is not None:
                    self._compiled.suspend(request)
            changed |= self._compiled.resume()
        if changed:
            self._batch = None

    def _begin_outcome(self) -> StepOutcome:
        outcome = StepOutcome(trace=self.step_trace, outputs=[] if self._wants_output else None)
        self.spending = outcome.spending
        return outcome

    def _decode(self, tensor: common_pb2.Tensor, rows: int) -> torch.Tensor:
        """The logits of a message; a view if they are in a region.

        Raises:
            InvalidLogits: the datatype or shape differs from the session's.
        """
        if tensor.datatype != self._datatype or list(tensor.shape) != [rows, self.vocab_size]:
            raise InvalidLogits(
                f"logits are {tensor.datatype}{list(tensor.shape)}; send {self._datatype}[{rows}, {self.vocab_size}]"
            )
        return self.regions.tensor(tensor) if tensor.HasField("region") else tensors.to_torch(tensor)

    def chain_length(self, request: common_pb2.Request) -> int:
        """Length of the chain of a request before its admission; 0 if it will be refused for its length."""
        length = len(request.processors)
        return length if length <= self._limits.max_processors_per_request else 0

    def check_work(self, work: int, rows: int) -> None:
        """Check the work of a step: its rows times their chains' lengths, added up. Raises LimitExceeded."""
        limit = self._limits.max_step_work
        if work > limit:
            raise LimitExceeded(
                f"the work of a step with {rows} rows is {work} (each request's rows or drafts times its processors); "
                f"the server accepts {limit}: chain fewer processors, send fewer rows or drafts in one step, or raise "
                "--max-step-work"
            )

    def close(self) -> None:
        """Cancel the pending admissions, and close the memory that the session shares with its engine."""
        self._pending_admissions.close()
        self.regions.close()

    def _check(self, addition: processing_pb2.SlottedRequest) -> Admission:
        """Check a request without its processors. Raises LogitportError."""
        previous = self._request_at(addition.slot, addition.generation)
        check_limits(addition.request, self._limits)
        caller = Party(self.principal.name, addition.request.tenant)
        return Admission(addition, self._engine, previous, self._device_name, caller)

    def _may_continue_in_background(self, admission: Admission, addition: processing_pb2.SlottedRequest) -> bool:
        """Whether the admission of a request may take long, and no step needs the request already."""
        return (
            addition.slot not in self._requests
            and self._processors.may_take_long_to_admit(addition.request)
            and self._pending_admissions.can_begin(admission)
        )

    def _join(self, request: ActiveRequest, reply: processing_pb2.RequestsAdded) -> None:
        """Add an admitted request to the batch."""
        self._pending_admissions.cancel(request.slot, request.generation)
        length = request.history.length
        if length > request.history.prompt_length or request.slot in self._requests:
            self._admitted.replayed_requests += 1
            self._admitted.replayed_tokens += length
        self._requests[request.slot] = request
        if self._compiled is not None:
            self._compiled.add(request)
        self._longest_chain = max(self._longest_chain, len(request.chain))
        self._batch = None
        if self._lending.admitted(request):
            self.regions.retire()
            reply.regions_retired = True

    def _drop(self, slot: int) -> None:
        """Remove a request from the batch."""
        del self._requests[slot]
        if self._compiled is not None:
            self._compiled.remove(slot)
        self._batch = None

    def _report_ended(self, reply: processing_pb2.RequestsAdded) -> None:
        """Report the admissions that have ended in the background. Admitted requests join the batch."""
        for pending in self._pending_admissions.take_ended():
            ended = reply.ended.add(slot=pending.admission.slot, generation=pending.admission.generation)
            self._admitted.queue_seconds.append(pending.queue_seconds)
            with pending.trace:
                try:
                    if pending.error is not None:
                        raise pending.error
                    request = self._finish(pending.admission, pending.trace)
                    self._join(request, reply)
                except Exception as error:  # noqa: BLE001 - the other admissions must be reported
                    what = f"the admission of slot {ended.slot}"
                    refusal = error if isinstance(error, LogitportError) else defects.to_error(error, what)
                    ended.error.CopyFrom(to_proto(refusal))
                    self._note_refused(pending.trace, refusal)
                else:
                    ended.reads_logits = request.reads_logits
                    describe_chain(request, ended.chain)

    def _finish(self, admission: Admission, trace: AdmissionTrace) -> ActiveRequest:
        request = admission.finish()
        request.trace = trace.span
        trace.admitted(replaces=admission.slot in self._requests, tokens=len(request.history))
        return request

    def _note_refused(self, trace: AdmissionTrace, error: LogitportError) -> None:
        self.first_refused = self.first_refused or trace.log_fields
        trace.refused(error)

    def _check_size(self, columns: processing_pb2.Step | processing_pb2.RemoveRequests) -> None:
        """Check the size of a frame: unpacked columns take many times their size. Raises LimitExceeded."""
        size_bytes, limit = columns.ByteSize(), self._limits.max_step_bytes
        if size_bytes > limit:
            raise LimitExceeded(
                f"columns of {size_bytes} bytes in one frame; the server accepts {limit}: split them into several "
                "frames, send long histories with AddRequests, or raise --max-step-bytes"
            )

    def _check_new_ids(self, columns: StepColumns, batch: StepBatch) -> None:
        """Check the calls of processors for new ids. Raises LimitExceeded."""
        limit, longest = self._limits.max_step_work, batch.longest_chain
        if longest * max(map(len, columns.new_token_ids), default=0) * len(batch.chain_lengths) <= limit:
            return  # fast path for the usual step
        counts = [len(token_ids) for token_ids in columns.new_token_ids]
        work = sum(map(operator.mul, counts, batch.chain_lengths))
        if work > limit:
            raise LimitExceeded(
                f"{sum(counts)} new ids for chains of up to {longest} processors are {work} calls in "
                f"one step; the server accepts {limit}: send long histories with AddRequests, or raise --max-step-work"
            )

    def _batch_for(self, frame: processing_pb2.Step) -> StepBatch:
        """The batch of a frame: the last step's if the layout is the same. Raises InvalidArgument."""
        columns = StepLayout.columns(frame)
        if self._batch is None or columns != self._batch_columns:
            rows = max(len(frame.row_requests), len(frame.slots)) // 4
            self.check_work(rows, rows)  # rows without a chain are work, too
            layout = StepLayout.read(frame, self._max_draft_tokens)
            batch = StepBatch(layout, self._requests, leave_out_compiled=True)
            self.check_work(batch.work, len(batch.layout.rows))
            self._batch, self._batch_columns = batch, columns
        return self._batch

    def _request_at(self, slot: int, generation: int) -> ActiveRequest | None:
        """The request of this slot and generation, if there is one. Raises InvalidArgument, DuplicateRequest."""
        if not 0 <= slot < self.max_requests:
            raise InvalidArgument(
                f"slot {slot} is outside [0, {self.max_requests}), the slots of this session; remove requests that "
                "have ended, or raise --max-requests-per-session"
            )
        request = self._requests.get(slot)
        occupant = self._pending_admissions.generation_at(slot) if request is None else request.generation
        if occupant not in (None, generation):
            raise DuplicateRequest(f"slot {slot} holds generation {occupant}; remove that request first")
        return request
