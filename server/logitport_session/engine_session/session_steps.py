"""The steps of a session: in Python, in the compiled core, and on logits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from logitport.core import tensors
from logitport.errors import InvalidArgument
from logitport_session.steps.batch import StepBatch, check_new_ids, check_size
from logitport_session.steps.columns import StepColumns, pack_int32
from logitport_session.steps.compiled_batch import TRANSPORTS
from logitport_session.steps.grouping import NOTHING_WAITS, Row, Rows, WaitingRows
from logitport_session.steps.outcome import StepOutcome
from logitport_session.steps.step import run
from logitport_session.steps.step_time import StepTime

if TYPE_CHECKING:
    from logitport_proto import common_pb2, processing_pb2
    from logitport_session.engine_session.engine_session import EngineSession
    from logitport_session.steps.compiled_batch import CompiledBatch
    from logitport_session.steps.outcome import StepDurations
    from logitport_session.steps.step_trace import StepTrace


def step(
    session: EngineSession,
    frame: processing_pb2.Step,
    data: bytes,
    reply: processing_pb2.StepEdits,
    trace: StepTrace | None = None,
) -> StepDurations:
    """Extend the histories by the sampled ids, and reply with the edits of the logits-free chains.

    `data` is the serialized `SessionRequest` that holds the frame, which the compiled core reads itself. `trace`
    records the step for its spans. Returns the step's time by cause.
    """
    limits, vocab_size = session.limits, session.vocab_size
    check_size(frame, limits)
    session.expected_requests = 0
    batch = session.batch.of_step(frame)
    if trace is not None:
        trace.rows = len(batch.layout.rows)
        trace.requests = batch.traces
    columns = StepColumns.read(frame, batch.layout, vocab_size, limits.max_tokens_per_request)
    check_new_ids(columns, batch, limits)
    compiled = None
    if batch.leaves_out and session.batch.compiled is not None:
        compiled = session.batch.compiled.step_partly(data) if trace is None else None
        if compiled is None:
            batch = StepBatch(batch.layout, session.batch.requests)
    outcome = StepOutcome(trace=trace)
    drafts = batch.synchronize(columns, outcome)
    session.step_time = StepTime(limits.processor_timeout_seconds)
    run(batch.logits_free, drafts, vocab_size, None, outcome, session.step_time)
    parts = outcome.pack_around_programs(vocab_size) if batch.has_engine_programs else [outcome.pack(vocab_size)]
    denied_rows: list[int] = []
    for part in parts:
        if not part.leaves_every_row_an_id(vocab_size // len(parts)):
            denied_rows = outcome.all_denied(vocab_size)
            break
    edits, *later = parts
    if compiled is None:
        packed = edits.to_columns()
    else:
        packed = compiled.columns_with(edits)
        denied_rows = sorted(denied_rows + compiled.denied_rows)
        outcome.add_compiled(compiled.applied)
    packed.write_to(reply.edits)
    for each in later:
        each.to_columns().write_to(reply.later_edits.add())
    waiting = batch.logits_reading(outcome)
    session.waiting_rows = WaitingRows(waiting, len(batch.layout.rows), drafts)
    if waiting:
        reply.logits_rows = pack_int32(row.index for row in waiting)
    session.batch.follow_failures(outcome)
    outcome.write_to(reply, denied_rows, () if compiled is None else compiled.events)
    reply.ended_admissions = len(session.pending_admissions.ended)
    return outcome.durations


def step_compiled(
    session: EngineSession,
    compiled: CompiledBatch,
    data: bytes,
    seq: int,
    transport: str,
    *,
    should_move: bool,
) -> bytes | None:
    """Do the same as `step` in the compiled core, which runs all requests, if the step is usual.

    `seq` is the number that the frame must have.

    Returns:
        The serialized reply. None if the frame is to be parsed, because it is another one or unusual; nothing has
        changed then.
    """
    ended = len(session.pending_admissions.ended)
    reply = compiled.core.step(data, seq, ended, should_move, TRANSPORTS[transport])
    if reply is not None:
        session.expected_requests = 0
        session.waiting_rows = NOTHING_WAITS
    return reply


def edit_logits(
    session: EngineSession,
    frame: processing_pb2.StepLogits,
    reply: processing_pb2.StepLogitsEdited,
    trace: StepTrace | None = None,
) -> StepDurations:
    """Process the rows of the last step that its reply requested. Returns as `step`."""
    from logitport_session.shared_memory.regions import write_back

    waiting, step_rows, drafts = session.waiting_rows
    if not waiting:
        raise InvalidArgument("StepLogits: the last step requested no logits, or they were sent already")
    in_region = frame.logits.HasField("region")
    whole_step = in_region and frame.logits.shape[:1] == [step_rows]
    with session.regions.lent(frame.logits):
        received = _decode(session, frame.logits, step_rows if whole_step else len(waiting))
        logits = _on_device(received, session.device)
        session.waiting_rows = NOTHING_WAITS
        if trace is not None:
            trace.rows = len(waiting)
        outcome = StepOutcome(trace=trace)
        region = session.regions.region(frame.logits)
        if region is not None and logits is received:
            session.lending.step(region, waiting)
        if whole_step:
            rows = waiting
        else:
            renumbered = (Row(index, row.request, row.draft_offset) for index, row in enumerate(waiting))
            rows = Rows(renumbered, greedy=waiting.greedy)
        run(rows, drafts, session.vocab_size, logits, outcome, session.step_time)
        if not in_region:
            tensors.write(reply.logits, logits)
        elif logits is not received:
            write_back(received, logits, [row.index for row in rows])
    step_index = {row.index: waiting_row.index for row, waiting_row in zip(rows, waiting, strict=True)}
    outcome.write_to(reply, [step_index[index] for index in outcome.all_denied(session.vocab_size)])
    return outcome.durations


def apply_rows(
    session: EngineSession,
    tensor: common_pb2.Tensor,
    rows_per_request: int,
    reply: processing_pb2.ApplyResponse,
    trace: StepTrace | None = None,
) -> StepDurations:
    """Process rows of logits, in the order of the slots; a slot may be empty. Returns as `step`."""
    num_rows = tensor.shape[0]
    logits = _on_device(_decode(session, tensor, num_rows), session.device)
    outcome = StepOutcome(trace=trace)
    by_slot = session.batch.requests
    requests = ((index, by_slot.get(index // rows_per_request)) for index in range(num_rows))
    greedy = all(request.greedy for request in by_slot.values())
    rows = Rows((Row(index, request) for index, request in requests if request is not None), greedy=greedy)
    run(rows, {}, session.vocab_size, logits, outcome, session.step_time)
    tensors.write(reply.logits, logits)
    outcome.write_to(reply, outcome.all_denied(session.vocab_size))
    return outcome.durations


def _on_device(logits: Any, device: str) -> Any:
    """The logits on the session's device. The copy blocks if their memory is not pinned."""
    return logits if device == "cpu" else logits.to(device, non_blocking=True)


def _decode(session: EngineSession, tensor: common_pb2.Tensor, rows: int) -> Any:
    """The logits of a message, float[rows, vocab_size]; a view if they are in a region. See `tensors.has_torch`.

    Raises:
        InvalidArgument: the datatype or shape differs from the session's, or numpy lacks the datatype.
    """
    datatype, shape = session.engine.datatype, [rows, session.vocab_size]
    if tensor.datatype != datatype or list(tensor.shape) != shape:
        raise InvalidArgument(f"logits are {tensor.datatype}{list(tensor.shape)}; send {datatype}{shape}")
    return session.regions.tensor(tensor) if tensor.HasField("region") else tensors.from_proto(tensor)
