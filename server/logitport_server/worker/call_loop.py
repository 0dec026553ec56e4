"""The worker's loop: answer calls until the server closes the connection."""

from __future__ import annotations

import os
import socket
import struct
import time
from collections import deque
from typing import TYPE_CHECKING

import numpy as np
import orjson

from logitport import payload
from logitport.core.edits import Edits
from logitport.core.history import History
from logitport.errors import InvalidArgument, LogitportError, PayloadError, to_proto
from logitport.system.bounded import BoundedTable
from logitport.system.frame_limits import MAX_WORKER_COLUMN_BYTES
from logitport.system.mapped_memory import map_shared
from logitport_server.registry.loader import PayloadLoader
from logitport_server.worker import messages, packing
from logitport_server.worker.event_column import encode_events
from logitport_server.worker.shown_source import ShownSource
from logitport_server.worker.worker_processor import WorkerProcessor, release_memory_after
from logitport_session.dialects import RequestContext, failures, make_dialect

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from logitport.system.cuda_ipc import Cuda
    from logitport_server.worker.output import Output
    from logitport_session.dialects import Dialect
    from logitport_session.dialects.base import EditsResult

    Answer = tuple[messages.Reply, Sequence[bytes]]
    Columns = Sequence[memoryview]

_MAX_PROCESSORS = 128
_MAX_KEPT = 8


def serve(connection: socket.socket, output: Output) -> None:
    """Answer calls until the connection is closed.

    `output` keeps what the processors print.
    """
    worker, own_pid = _Worker(output), os.getpid()
    reader = packing.Reader()
    descriptors: deque[int] = deque()
    while True:
        data, received, _, _ = socket.recv_fds(connection, packing.READ_BYTES, 1)
        if not data:
            return
        descriptors.extend(received)
        reader.feed(data)
        while (packet := reader.next(MAX_WORKER_COLUMN_BYTES)) is not None:
            call = messages.decode_call(packet.message)
            limits = packing.reply_limits(call, packet.columns)
            reply, columns = worker.answer(call, packet.columns, descriptors)
            if os.getpid() != own_pid:  # a processor has forked; only the original process may answer
                os._exit(1)
            connection.sendall(packing.pack_reply(packet.call, reply, columns, limits))


class _Worker:
    def __init__(self, output: Output) -> None:
        self._output = output
        self._loader = PayloadLoader(_MAX_PROCESSORS)
        self._loaded: dict[int, WorkerProcessor] = {}
        # By digest: released instances that took long to create, and how long. Their requests were released before.
        self._kept: BoundedTable[str, tuple[Dialect, float]] = BoundedTable(_MAX_KEPT)
        self._cuda: Cuda | None = None

    def answer(self, call: messages.WorkerCall, columns: Columns, descriptors: deque[int]) -> Answer:
        """Run a call. An error of a processor becomes an `ErrorReply`.

        `descriptors` were received, in the order of the calls that they belong to.

        Raises:
            CudaError: the call has broken CUDA for this process, which must exit.
        """
        self._output.begin()
        if call.released:
            with self._output.of_others():
                self._drop(call.released)
        # Taken before anything can fail: it must not be left for the next call.
        descriptor = descriptors.popleft() if _has_descriptor(call) else -1
        try:
            answer = self._run(call, columns, descriptor)
        except BaseException as error:  # noqa: BLE001 - shipped code may raise anything
            failure = self._failure(error, call)
            answer = messages.ErrorReply(error=_to_message(failure, self._output_of_one(call))), ()
        finally:
            if descriptor >= 0:
                os.close(descriptor)
        if self._cuda is not None:
            self._cuda.synchronize()  # the server relies on all work on the logits being done
        answer[0].output = self._output.end()
        return answer

    def _output_of_one(self, call: messages.WorkerCall) -> str:
        loaded = self._loaded.get(call.processor) if isinstance(call, messages.StepCall) else None
        return self._output.since(0) if loaded is None else loaded.output_of_one()

    def _drop(self, released: Sequence[tuple[int, int | None]]) -> None:
        for processor, state in released:
            if state is None:
                self._keep(self._loaded.pop(processor, None))
            elif processor in self._loaded:
                self._loaded[processor].drop(state)

    def _keep(self, loaded: WorkerProcessor | None) -> None:
        if loaded is not None and loaded.kept:
            self._kept[loaded.digest] = loaded.dialect, loaded.init_seconds

    def _failure(self, error: BaseException, call: messages.WorkerCall) -> LogitportError:
        loaded = self._loaded.get(call.processor)
        if isinstance(call, messages.LoadProcessor) or loaded is None:
            failure = failures.of_sandboxed(error, call.name if isinstance(call, messages.LoadProcessor) else "")
            release_memory_after(error)
            return failure
        return loaded.failure(error)

    def _run(self, call: messages.WorkerCall, columns: Columns, descriptor: int) -> Answer:
        if isinstance(call, messages.LoadProcessor):
            source = ShownSource.decode(columns[1])
            with source.shown():  # an error of loading has its traceback already when it is raised
                return self._load(call, columns, source), ()
        loaded = self._loaded.get(call.processor)
        if loaded is None:
            raise PayloadError("the processor is not loaded: loading it has failed")
        if isinstance(call, messages.Edit):
            return _edit(loaded, call, columns)
        if isinstance(call, messages.Process):
            return _process(loaded, call, columns, descriptor), ()
        if isinstance(call, messages.Start):
            return _start(loaded, call, columns), ()
        if isinstance(call, messages.Validate):
            loaded.dialect.validate(orjson.loads(columns[0]), orjson.loads(columns[1]))
        elif isinstance(call, messages.OpenGpuMemory):
            self._open_gpu_memory(loaded, call.memory, descriptor)
        return messages.EmptyReply(), ()

    def _load(self, call: messages.LoadProcessor, columns: Columns, source: ShownSource) -> messages.LoadReply:
        shipped = payload.Payload(bytes(columns[0]), call.digest, call.python, call.dill)
        misses = self._loader.misses
        processor = self._loader.load(shipped)
        if call.digest in self._kept:
            dialect, init_seconds = self._kept.pop(call.digest)
        else:
            began = time.monotonic()
            dialect = make_dialect(processor, call.name, shipped=True)
            init_seconds = time.monotonic() - began
        loaded = WorkerProcessor(dialect, call.digest, init_seconds, self._output, source)
        self._loaded[call.processor] = loaded
        reply = messages.LoadReply(
            reads_logits=bool(dialect.reads_logits),
            argmax_invariant=bool(dialect.argmax_invariant),
            takes_drafts=bool(dialect.takes_drafts),
            unpickled=self._loader.misses > misses,
            init_seconds=loaded.init_seconds,
            kept=loaded.kept,
            checks_params=bool(dialect.checks_params),
            checks_sampling_params=dialect.checks_sampling_params,
            denies_without=None if dialect.denies_without is None else list(dialect.denies_without),
        )
        if dialect.reads_logits and call.gpu is not None:
            try:
                loaded.device = self._start_gpu(*call.gpu)
            except Exception as error:  # noqa: BLE001 - the processor then runs on the CPU
                reply.gpu_error = (str(error) or type(error).__name__)[: messages.MAX_TEXT_LENGTH]
        return reply

    def _start_gpu(self, device: str, uuid: str) -> str:
        from logitport_server.worker.open_gpu import open_gpu

        self._cuda = self._cuda or open_gpu(device, bytes.fromhex(uuid))
        return str(self._cuda.device)

    def _open_gpu_memory(self, loaded: WorkerProcessor, memory: messages.WorkerMemory, descriptor: int) -> None:
        if self._cuda is None:
            raise RuntimeError("this worker uses no GPU")
        loaded.memory[memory.number] = self._cuda.open_shared(descriptor, memory.size_bytes)


def _has_descriptor(call: messages.WorkerCall) -> bool:
    if isinstance(call, messages.Process):
        return call.logits.mapped is not None
    return isinstance(call, messages.OpenGpuMemory)


def _start(loaded: WorkerProcessor, call: messages.Start, columns: Columns) -> messages.StartReply:
    params, sampling_params = orjson.loads(columns[0]), orjson.loads(columns[1])
    token_ids = np.frombuffer(columns[2], "<i4")
    context = RequestContext(
        call.request_id,
        History(token_ids[: call.prompt_length], token_ids[call.prompt_length :]),
        sampling_params,
        call.vocab_size,
        call.tokenizer_id,
        call.eos_token_ids,
        call.max_requests,
        loaded.device,
    )
    loaded.start(call.state, context, params)
    return messages.StartReply(argmax_invariant=bool(loaded.dialect.argmax_invariant))


def _edit(loaded: WorkerProcessor, call: messages.Edit, columns: Columns) -> Answer:
    failed, rows = _update(loaded, call, columns)
    result: EditsResult = loaded.dialect.edit(loaded.states(rows)) if rows else ()
    edits_by_row = result.unpack(len(rows)) if isinstance(result, Edits) else result
    try:
        edits = Edits.pack(zip(rows, edits_by_row, strict=True), call.vocab_size)
    except InvalidArgument:
        with loaded.source.shown():
            for row_edits in edits_by_row:
                row_edits.check(call.vocab_size)  # raises the same error, with the line of the processor
        raise
    events = [(rows[index], event) for index, event in loaded.dialect.events] if rows else []
    return messages.EditReply(failed=failed), (*edits.to_columns(), *encode_events(events))


def _process(
    loaded: WorkerProcessor, call: messages.Process, columns: Columns, descriptor: int
) -> messages.ProcessReply:
    failed, rows = _update(loaded, call, columns)  # first: the server has forgotten these events
    _map_and_unmap(loaded, call.logits, descriptor)
    if rows:
        before = call.drafts_before
        loaded.dialect.drafts = [before[row] for row in rows] if before else ()
        _process_rows(loaded, rows, _logits(loaded, call.logits))
        for position, error in loaded.dialect.failed.items():
            failure = loaded.failure(error)
            failed[rows[position]] = _to_message(failure, loaded.output_of_one())
    return messages.ProcessReply(failed=failed, not_rebuildable=loaded.newly_not_rebuildable(rows))


def _update(
    loaded: WorkerProcessor, call: messages.StepCall, columns: Columns
) -> tuple[dict[int, messages.Error], Sequence[int]]:
    """Apply the history events. Returns the errors by row, and the rows to call."""
    events = struct.unpack(f"<{len(columns[0]) // 4}i", columns[0])
    failed, rows = loaded.update(call.states, call.counts, events, call.drafts)
    return {row: _to_message(error, error.output) for row, error in failed.items()} if failed else {}, rows


def _map_and_unmap(loaded: WorkerProcessor, logits: messages.LogitsPlacement, descriptor: int) -> None:
    for number in logits.unmapped:
        loaded.memory.pop(number, None)
    if logits.mapped is not None:
        loaded.memory[logits.mapped.number] = map_shared(descriptor, logits.mapped.size_bytes)


def _logits(loaded: WorkerProcessor, placement: messages.LogitsPlacement) -> torch.Tensor:
    """Return float[rows, vocab_size], a view of the memory that the call names."""
    import torch

    shape = placement.rows, placement.vocab_size
    dtype = getattr(torch, placement.dtype)
    memory = loaded.memory[placement.memory]
    if isinstance(memory, torch.Tensor):
        size_bytes = shape[0] * shape[1] * dtype.itemsize
        return memory[placement.offset : placement.offset + size_bytes].view(dtype).view(shape)
    return torch.frombuffer(memory, dtype=dtype, count=shape[0] * shape[1], offset=placement.offset).view(shape)


def _process_rows(loaded: WorkerProcessor, rows: Sequence[int], logits: torch.Tensor) -> None:
    """Call the processor for these rows, and write its result over their logits."""
    import torch

    from logitport_session.dialects.results import check_result

    all_rows = len(rows) == len(logits)
    selected = (logits if all_rows else logits[list(rows)]).to(loaded.device)
    shape = selected.shape  # the processor may reshape its tensor in place
    with torch.no_grad():
        result = loaded.dialect.process(loaded.states(rows), selected)
        check_result(result, shape, loaded.dialect.name)
        if not all_rows:
            logits[list(rows)] = result.to(logits)
        elif not result.is_set_to(logits):
            logits.copy_(result)


def _to_message(error: LogitportError, output: str) -> messages.Error:
    proto = to_proto(error)
    text, trace = proto.message[: messages.MAX_TEXT_LENGTH], proto.remote_traceback[-messages.MAX_TRACE_LENGTH :]
    return messages.Error(proto.code, text, trace, output[-messages.MAX_ERROR_OUTPUT_LENGTH :])
