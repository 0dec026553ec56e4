"""The steps of a session: in Python, in the compiled core, and on logits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logitport.core import tensors
from logitport.errors import InvalidArgument
from logitport_server.session import step
from logitport_server.session.batch import StepBatch
from logitport_server.session.columns import StepColumns, pack_int32, write_outcome
from logitport_server.session.compiled_batch import TRANSPORTS
from logitport_server.session.grouping import Row, Rows
from logitport_server.session.outcome import StepOutcome
from logitport_server.session.step_limits import check_new_ids, check_size
from logitport_server.session.step_time import Spending, StepTime
from logitport_server.shared_memory.regions import write_back
from logitport_server.turns import Released

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from logitport_core._core import PrincipalLock
    from logitport_proto import common_pb2, processing_pb2
    from logitport_server.config import ServerConfig
    from logitport_server.session.active_request import ActiveRequest
    from logitport_server.session.compiled_batch import CompiledBatch
    from logitport_server.session.lending import Lending
    from logitport_server.session.pending_admissions import PendingAdmissions
    from logitport_server.session.persistent_batch import PersistentBatch
    from logitport_server.session.step_trace import StepTrace
    from logitport_server.shared_memory.regions import Regions

_NOTHING_PENDING: tuple[Rows, int, dict[ActiveRequest, Sequence[int]]] = (Rows(), 0, {})


class SessionSteps:
    """Computes the steps of a session.

    Args:
        engine: the message that opened the session.
        batch: the requests of the session.
        pending_admissions: the admissions in the background.
        regions: the memory that the session shares.
        lending: lends it to workers.
        device: where logits are processed that are not sent to workers.
        limits: the server's options.

    Attributes:
        expected_requests: how many requests the engine adds before its first step, at most; 0 after that step.
        spending: the time of the last step, or part of a step, by cause.
        trace: the record of the next step, or part of it, for its spans; None if it has none.
    """

    def __init__(
        self,
        engine: processing_pb2.OpenSession,
        batch: PersistentBatch,
        pending_admissions: PendingAdmissions,
        regions: Regions,
        lending: Lending,
        device: torch.device,
        limits: ServerConfig,
    ) -> None:
        self.expected_requests = min(engine.expected_requests, engine.max_requests)
        self.spending = Spending()
        self.trace: StepTrace | None = None
        self._vocab_size = engine.vocab_size
        self._datatype = engine.datatype
        self._batch = batch
        self._pending_admissions = pending_admissions
        self._regions = regions
        self._lending = lending
        self._device = device
        self._limits = limits
        # Of the last step: whether its replies include what processors print.
        # Of the last step: the rows that wait for their logits, the number of all its rows, and its drafts.
        self._pending: tuple[Rows, int, dict[ActiveRequest, Sequence[int]]] = _NOTHING_PENDING
        self._step_time = StepTime(limits.processor_timeout_seconds)

    def step(self, frame: processing_pb2.Step, reply: processing_pb2.StepEdits) -> None:
        """Extend the histories by the sampled ids, and reply with the edits of the logits-free chains."""
        limits, vocab_size = self._limits, self._vocab_size
        check_size(frame, limits)
        self.expected_requests = 0
        batch = self._batch.of_step(frame)
        if self.trace is not None:
            self.trace.rows = len(batch.layout.rows)
            self.trace.requests = batch.traces
        columns = StepColumns.read(frame, batch.layout, vocab_size, limits.max_tokens_per_request)
        check_new_ids(columns, batch, limits)
        compiled = None
        if batch.leaves_out and self._batch.compiled is not None:
            compiled = self._batch.compiled.step_partly(frame) if self.trace is None else None
            if compiled is None:
                batch = StepBatch(batch.layout, self._batch.requests)
        outcome = self._begin_outcome()
        drafts = batch.synchronize(columns, outcome)
        self._step_time = StepTime(limits.processor_timeout_seconds)
        step.run(batch.logits_free, drafts, vocab_size, None, outcome, self._step_time)
        parts = outcome.pack_around_programs(vocab_size) if batch.has_engine_programs else [outcome.pack(vocab_size)]
        leaves_ids = all(part.leaves_every_row_an_id(vocab_size // len(parts)) for part in parts)
        denied_rows = [] if leaves_ids else outcome.all_denied(vocab_size)
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
        self._batch.follow_failures(outcome)
        reply.ended_admissions = self._pending_admissions.num_ended

    def step_compiled(
        self,
        data: bytes,
        seq: int,
        transport: str,
        *,
        should_move: bool,
        queued_seconds: float = 0.0,
        lock: PrincipalLock | None = None,
        must_be_short: bool = False,
    ) -> bytes | None:
        """Do the same as `step` in the compiled core, if all requests are compiled and the step is usual.

        Args:
            data: the serialized frame.
            seq: the number that it must have.
            transport: "grpc" or "local".
            should_move: a field of the reply.
            queued_seconds: how long the frame has waited.
            lock: held while the step is computed.
            must_be_short: refuse a step that may take over a few milliseconds: long histories, large lists, rewinds.

        Returns:
            The serialized reply. None if the frame is to be parsed, because it is another one or unusual, or if it is
            not short; nothing has changed then.
        """
        compiled = self._batch.compiled
        if compiled is None or not compiled.slots:
            return None
        ended = self._pending_admissions.num_ended
        reply = compiled.core.step(
            data, seq, ended, should_move, TRANSPORTS[transport], queued_seconds, lock, must_be_short
        )
        if reply is not None:
            self.expected_requests = 0
            self._pending = _NOTHING_PENDING
        return reply

    @property
    def compiled_server(self) -> CompiledBatch | None:
        """The compiled core if it can answer frames without Python for a while: if they are steps of `step_compiled`.

        None before the first step, and while the replies must state what happens to admissions in the background.
        """
        batch = self._batch
        ready = batch.is_compiled and not (self.expected_requests or len(self._pending_admissions) or self._pending[0])
        return batch.compiled if ready else None

    def edit_logits(self, frame: processing_pb2.StepLogits, reply: processing_pb2.StepLogitsEdited) -> None:
        """Process the pending rows of the last step, for which its reply requested logits."""
        pending, step_rows, drafts = self._pending
        if not pending:
            raise InvalidArgument("StepLogits: the last step requested no logits, or they were sent already")
        in_region = frame.logits.HasField("region")
        whole_step = in_region and frame.logits.shape[:1] == [step_rows]
        with self._regions.lent(frame.logits):
            with Released():
                received = self._decode(frame.logits, step_rows if whole_step else len(pending))
                logits = received.to(self._device, non_blocking=True)  # blocks nevertheless if the memory is not pinned
            self._pending = _NOTHING_PENDING
            if self.trace is not None:
                self.trace.rows = len(pending)
            outcome = self._begin_outcome()
            region = self._regions.region(frame.logits)
            if region is not None and logits is received:
                self._lending.step(region, pending)
            if whole_step:
                rows = pending
            else:
                renumbered = (Row(index, row.request, row.draft_offset) for index, row in enumerate(pending))
                rows = Rows(renumbered, greedy=pending.greedy)
            step.run(rows, drafts, self._vocab_size, logits, outcome, self._step_time)
            with Released():
                if not in_region:
                    tensors.write(reply.logits, logits)
                elif logits is not received:
                    write_back(received, logits, [row.index for row in rows])
        step_index = {row.index: pending_row.index for row, pending_row in zip(rows, pending, strict=True)}
        write_outcome(reply, outcome, [step_index[index] for index in outcome.all_denied(self._vocab_size)])

    def apply(
        self, tensor: common_pb2.Tensor, num_rows: int, rows_per_request: int, reply: processing_pb2.ApplyResponse
    ) -> None:
        """Process `num_rows` rows of logits: those of slot 0, then those of slot 1, ...; a slot may be empty."""
        with Released():
            logits = self._decode(tensor, num_rows).to(self._device)
        outcome = self._begin_outcome()
        by_slot = self._batch.requests
        requests = ((index, by_slot.get(index // rows_per_request)) for index in range(num_rows))
        greedy = all(request.greedy for request in by_slot.values())
        rows = Rows((Row(index, request) for index, request in requests if request is not None), greedy=greedy)
        step.run(rows, {}, self._vocab_size, logits, outcome, self._step_time)
        with Released():
            tensors.write(reply.logits, logits)
        write_outcome(reply, outcome, outcome.all_denied(self._vocab_size))

    def _begin_outcome(self) -> StepOutcome:
        outcome = StepOutcome(trace=self.trace)
        self.spending = outcome.spending
        return outcome

    def _decode(self, tensor: common_pb2.Tensor, rows: int) -> torch.Tensor:
        """The logits of a message; a view if they are in a region.

        Raises:
            InvalidArgument: the datatype or shape differs from the session's.
        """
        if tensor.datatype != self._datatype or list(tensor.shape) != [rows, self._vocab_size]:
            raise InvalidArgument(
                f"logits are {tensor.datatype}{list(tensor.shape)}; send {self._datatype}[{rows}, {self._vocab_size}]"
            )
        return self._regions.tensor(tensor) if tensor.HasField("region") else tensors.to_torch(tensor)
