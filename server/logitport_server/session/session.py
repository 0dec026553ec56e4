"""One engine's persistent batch: frames in, frames out. Knows nothing of gRPC."""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

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
from logitport_server.principals import ANONYMOUS, TrustDomain
from logitport_server.session.active_request import ActiveRequest, admit, check_token_ids
from logitport_server.session.batch import StepBatch
from logitport_server.session.columns import (
    StepColumns,
    StepLayout,
    pack_int32,
    too_many_tokens,
    unpack_int32,
    write_outcome,
)
from logitport_server.session.grouping import Row, Rows
from logitport_server.session.lending import Lending
from logitport_server.session.outcome import StepOutcome
from logitport_server.session.step import RunChains
from logitport_server.shared_memory.regions import Regions, put_back

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from logitport_server.config import ServerConfig
    from logitport_server.dialects import Dialect
    from logitport_server.executors import Executor
    from logitport_server.principals import Principal
    from logitport_server.registry.registry import Registry
    from logitport_server.shared_memory.regions import Region

# They travel to workers with every request.
_MAX_EOS_TOKEN_IDS = 1024
_MAX_TOKENIZER_ID_LENGTH = 4096  # a path, perhaps


class Session:
    """Requests by slot, each with its history and state.

    Not safe to use from several threads; an engine's frames come one after the other.
    """

    def __init__(
        self,
        opening: processing_pb2.OpenSession,
        registry: Registry,
        executor: Executor,
        device: torch.device,
        limits: ServerConfig,
        principal: Principal = ANONYMOUS,
    ) -> None:
        if opening.vocab_size < 1:
            raise InvalidArgument(f"vocab_size is {opening.vocab_size}; it is the width of the logits, 1 or more")
        if opening.datatype not in tensors.DATATYPES:
            raise InvalidArgument(f"datatype is {opening.datatype!r}; write one of {', '.join(tensors.DATATYPES)}")
        if opening.max_requests < 0 or opening.max_draft_tokens < 0:
            raise InvalidArgument(
                f"max_requests is {opening.max_requests} and max_draft_tokens {opening.max_draft_tokens}; "
                "both are 0 or more"
            )
        if opening.max_draft_tokens > limits.max_draft_tokens:
            raise LimitExceeded(
                f"max_draft_tokens is {opening.max_draft_tokens}; the server takes {limits.max_draft_tokens} a request "
                "and step: draft fewer, or raise --max-draft-tokens"
            )
        check_token_ids(opening.eos_token_ids, opening.vocab_size, "eos_token_ids")
        if len(opening.eos_token_ids) > _MAX_EOS_TOKEN_IDS or len(opening.tokenizer_id) > _MAX_TOKENIZER_ID_LENGTH:
            raise InvalidArgument(
                f"eos_token_ids holds {len(opening.eos_token_ids)} ids and tokenizer_id {len(opening.tokenizer_id)} "
                f"characters; at most {_MAX_EOS_TOKEN_IDS} and {_MAX_TOKENIZER_ID_LENGTH} are taken"
            )
        self.vocab_size = opening.vocab_size
        self.max_requests = min(
            opening.max_requests or limits.max_requests_per_session, limits.max_requests_per_session
        )
        self._engine = processing_pb2.OpenSession()
        self._engine.CopyFrom(opening)
        self._engine.max_requests = self.max_requests
        self.most_draft_tokens = limits.max_draft_tokens
        self.regions = Regions(limits.max_region_bytes, open_cuda(device) if limits.share_device_memory else None)
        self._lending = Lending()
        self._datatype = opening.datatype
        self._limits = limits
        self._max_draft_tokens = opening.max_draft_tokens
        self._registry = registry
        self._executor = executor
        self._principal = principal
        self._device = device
        self._requests: dict[int, ActiveRequest] = {}
        self._run_chains = PipelineStage.get(RunChains.name)
        # One instance a processor, trust domain, tenant (None: all of them), place in the chain and session, gone with
        # the last request that uses it: what keeps state of a batch, as vLLM's do, sees each request once a step.
        self._hosted: WeakValueDictionary[tuple[str, TrustDomain | None, str | None, int], Dialect] = (
            WeakValueDictionary()
        )
        # Of the last step, as long as it can serve another one.
        self._batch: StepBatch | None = None
        self._batch_columns: tuple[bytes, ...] = ()
        # The rows of the last step whose logits are still to come, of how many rows, and that step's drafts.
        self._awaited: tuple[Rows, int, dict[ActiveRequest, Sequence[int]]] = (Rows(), 0, {})

    def __len__(self) -> int:
        return len(self._requests)

    @property
    def may_take_long(self) -> bool:
        """Whether a step may run code that a client sent, or that says so, and so not on the thread that serves all."""
        return any(dialect.shipped or dialect.takes_long for dialect in self._hosted.values())

    def add(self, frame: processing_pb2.AddRequests, reply: processing_pb2.RequestsAdded) -> None:
        """Admit requests; one that is refused costs only itself."""
        reads_logits = bytearray()
        for addition in frame.requests:
            try:
                occupant = self._occupant(addition.slot, addition.generation)
                self._check_request(addition.request)
                caller = TrustDomain(self._principal.name, addition.request.tenant)
                seconds = self._limits.load_timeout_seconds
                request = admit(addition, self._engine, self._host, occupant, str(self._device), seconds, caller)
            except LogitportError as error:
                reply.failures.append(common_pb2.Failure(slot=addition.slot, error=to_proto(error)))
                reads_logits.append(False)
                reply.chains.add()
            else:
                reply.chains.add(processors=[entry.dialect.key for entry in request.chain])
                self._requests[addition.slot] = request
                self._batch = None
                if self._lending.admitted(request):
                    self.regions.retire()
                    reply.regions_retired = True
                reads_logits.append(request.reads_logits)
        reply.reads_logits = bytes(reads_logits)

    def open_region(self, frame: processing_pb2.OpenRegion) -> tuple[int, Region]:
        """Memory to share with the engine, and its id. Raises InvalidArgument, LimitExceeded."""
        region_id, region = self.regions.open(frame.size_bytes, frame.replaces)
        self._lending.opened(region, self._requests.values())
        return region_id, region

    def remove(self, frame: processing_pb2.RemoveRequests) -> None:
        """Drop requests and their state; places that hold another generation, or none, are left alone."""
        self._check_size(frame)
        slots = unpack_int32(frame.slots, "RemoveRequests.slots")
        generations = unpack_int32(frame.generations, "RemoveRequests.generations", len(slots))
        for slot, generation in zip(slots, generations, strict=True):
            request = self._requests.get(slot)
            if request is not None and request.generation == generation:
                del self._requests[slot]
                self._batch = None

    def step(self, frame: processing_pb2.Step, reply: processing_pb2.StepEdits) -> None:
        """Take in what was sampled, and answer with the edits that follow from the histories alone."""
        self._check_size(frame)
        batch = self._batch_of(frame)
        columns = StepColumns.read(frame, batch.layout, self.vocab_size, self._limits.max_tokens_per_request)
        outcome = StepOutcome()
        drafts = batch.synchronise(columns, outcome)
        self._run_chains(batch.logits_free, drafts, self.vocab_size, None, outcome)
        edits = outcome.pack(self.vocab_size)
        reply.edits.CopyFrom(edits.to_proto())
        awaited = batch.reading(outcome)
        self._awaited = (awaited, len(batch.layout.rows), drafts)
        if awaited:
            reply.logits_rows = pack_int32(row.index for row in awaited)
        all_denied = [] if edits.leaves_every_row_an_id(self.vocab_size) else outcome.all_denied(self.vocab_size)
        write_outcome(reply, outcome, all_denied)
        if outcome.failures:
            self._batch = None

    def edit_logits(self, frame: processing_pb2.StepLogits, reply: processing_pb2.StepLogitsEdited) -> None:
        """Process the rows that the last step asked for."""
        awaited, step_rows, drafts = self._awaited
        if not awaited:
            raise InvalidArgument("StepLogits: the last step asked for no logits, or got them already")
        in_region = frame.logits.HasField("region")
        whole_step = in_region and frame.logits.shape[:1] == [step_rows]
        with self.regions.lent(frame.logits):
            here = self._decode(frame.logits, step_rows if whole_step else len(awaited))
            logits = here.to(self._device, non_blocking=True)  # which waits all the same if they are not pinned
            self._awaited = (Rows(), 0, {})
            outcome = StepOutcome()
            region = self.regions.region(frame.logits)
            if region is not None and logits is here:
                self._lending.step(region, awaited)
            if whole_step:
                places = awaited
            else:
                renumbered = (Row(at, row.request, row.draft_offset) for at, row in enumerate(awaited))
                places = Rows(renumbered, greedy=awaited.greedy)
            self._run_chains(places, drafts, self.vocab_size, logits, outcome)
            if not in_region:
                tensors.write(reply.logits, logits)
            elif logits is not here:
                put_back(here, logits, [place.index for place in places])
        number = {place.index: row.index for place, row in zip(places, awaited, strict=True)}
        write_outcome(reply, outcome, [number[at] for at in outcome.all_denied(self.vocab_size)])

    def apply(self, tensor: common_pb2.Tensor, rows: int, each: int, reply: processing_pb2.ApplyResponse) -> None:
        """Process `rows` rows of logits, of which each slot in turn has `each`; a slot may hold no request."""
        logits = self._decode(tensor, rows).to(self._device)
        outcome = StepOutcome()
        placed = ((index, self._requests.get(index // each)) for index in range(rows))
        greedy = all(request.greedy for request in self._requests.values())
        present = Rows((Row(index, request) for index, request in placed if request is not None), greedy=greedy)
        self._run_chains(present, {}, self.vocab_size, logits, outcome)
        tensors.write(reply.logits, logits)
        write_outcome(reply, outcome, outcome.all_denied(self.vocab_size))

    def _decode(self, tensor: common_pb2.Tensor, rows: int) -> torch.Tensor:
        """Logits where they are. Raises InvalidLogits if they are not what the session was opened for."""
        if tensor.datatype != self._datatype or list(tensor.shape) != [rows, self.vocab_size]:
            raise InvalidLogits(
                f"logits are {tensor.datatype}{list(tensor.shape)}; "
                f"{self._datatype}[{rows}, {self.vocab_size}] is wanted"
            )
        return self.regions.tensor(tensor) if tensor.HasField("region") else tensors.to_torch(tensor)

    def close(self) -> None:
        """Give up what the session shares with its engine."""
        self.regions.close()

    def _check_request(self, request: common_pb2.Request) -> None:
        """Refuse what is large to hold. Raises LimitExceeded."""
        length = len(request.prompt_token_ids) + len(request.output_token_ids)
        if length > self._limits.max_tokens_per_request:
            raise too_many_tokens(length, self._limits.max_tokens_per_request)
        if len(request.processors) > self._limits.max_processors_per_request:
            raise LimitExceeded(
                f"{len(request.processors)} processors in one request; the server takes "
                f"{self._limits.max_processors_per_request}: chain fewer, or raise --max-processors-per-request"
            )
        json_bytes = len(request.sampling_params) + sum(len(call.params) for call in request.processors)
        if json_bytes > self._limits.max_params_bytes:
            raise LimitExceeded(
                f"{json_bytes} bytes of parameters in one request; the server takes {self._limits.max_params_bytes}: "
                "send less, or raise --max-params-bytes"
            )

    def _check_size(self, columns: processing_pb2.Step | processing_pb2.RemoveRequests) -> None:
        """Refuse columns that would take long to read, and many times their size. Raises LimitExceeded."""
        size_bytes, most = columns.ByteSize(), self._limits.max_step_bytes
        if size_bytes > most:
            raise LimitExceeded(
                f"columns of {size_bytes} bytes in one frame; the server takes {most}: send them in several, tell long "
                "histories with AddRequests, or raise --max-step-bytes"
            )

    def _batch_of(self, frame: processing_pb2.Step) -> StepBatch:
        """The batch of the last step, if this frame's is the same. Raises InvalidArgument as `StepLayout.read`."""
        columns = StepLayout.columns(frame)
        if self._batch is None or columns != self._batch_columns:
            self._batch = StepBatch(StepLayout.read(frame, self._max_draft_tokens), self._requests)
            self._batch_columns = columns
        return self._batch

    def _host(self, processor: common_pb2.Processor, tenant: str, place: int) -> Dialect:
        source = self._registry.resolve(processor, self._principal, tenant)
        everyones, own = ((source.key, source.domain, whose, place) for whose in (None, tenant))
        dialect = self._hosted.get(everyones) or self._hosted.get(own)
        if dialect is None:
            dialect = self._executor.host(source)
            # What raises in a call that reads logits fails all rows of it: not those of another tenant, too.
            self._hosted[own if dialect.reads_logits else everyones] = dialect
        return dialect

    def _occupant(self, slot: int, generation: int) -> ActiveRequest | None:
        """The request of this slot and generation, if it is here. Raises InvalidArgument, DuplicateRequest."""
        if not 0 <= slot < self.max_requests:
            raise InvalidArgument(
                f"slot {slot} is outside [0, {self.max_requests}), the places of this session; remove requests that "
                "have ended, or raise --max-requests-per-session"
            )
        occupant = self._requests.get(slot)
        if occupant is not None and occupant.generation != generation:
            raise DuplicateRequest(f"slot {slot} holds generation {occupant.generation}; remove that request first")
        return occupant
