"""One engine's persistent batch: admits requests and computes steps. Independent of gRPC."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from logitport.core import tensors
from logitport.core.compiled import core
from logitport.errors import InvalidArgument, LimitExceeded
from logitport_proto import processing_pb2
from logitport_session.admissions.admission import check_token_ids
from logitport_session.admissions.pending_admissions import PendingAdmissions
from logitport_session.engine_session.lending import Lending
from logitport_session.requests.loaded_processors import LoadedProcessors
from logitport_session.requests.principal_memory import PrincipalMemory
from logitport_session.steps.batch import PersistentBatch, check_size
from logitport_session.steps.columns import unpack_int32
from logitport_session.steps.compiled_batch import CompiledBatch
from logitport_session.steps.engine_programs import write_programs
from logitport_session.steps.grouping import NOTHING_WAITS
from logitport_session.steps.step_time import ReplyDeadlines, StepTime
from logitport_session.trust.principals import ANONYMOUS

if TYPE_CHECKING:
    from concurrent.futures import Future

    from logitport.system.cuda_ipc import Cuda
    from logitport_session.admissions.pending_admissions import Submit
    from logitport_session.requests.loaded_processors import Loader, Names
    from logitport_session.resources.session_limits import SessionLimits
    from logitport_session.shared_memory.regions import Region, Regions
    from logitport_session.steps.compiled_batch import CompiledCounts
    from logitport_session.trust.principals import Principal

# Of a request in one step: trees of drafts have tens of tokens. Each is a row, with work for each processor.
MAX_DRAFT_TOKENS = 256
# These fields are sent to workers with every request.
_MAX_EOS_TOKEN_IDS = 1024
_MAX_TOKENIZER_ID_LENGTH = 4096  # a path, perhaps


class EngineSession:
    """Requests by slot, each with its history and state.

    Not thread-safe: an engine's frames are processed one at a time. Admissions in the background run on other threads.

    Args:
        opening: the message that opens it.
        device: where logits are processed that are not sent to workers: "cpu", or torch's name of a GPU.
        submit: runs admissions in the background. Without it, all requests are admitted before the reply.
        account: charged with the memory of the requests; by default, the session has an account of its own.

    Attributes:
        engine: the message that opened it, with its final `max_requests`.
        max_requests: the number of its slots.
        batch: the admitted requests.
        processors: loads the processors of all requests.
        account: as the argument.
        lending: lends this memory to workers.
        reply_deadlines: the deadlines to state to the engine.
        trace: the span of its opening, as `Span.context`.
        expected_requests: how many requests the engine adds before its first step, at most; 0 after that step.
        waiting_rows: the rows of the last step that wait for their logits.
        step_time: the time of the last step.
    """

    def __init__(
        self,
        opening: processing_pb2.OpenSession,
        names: Names,
        loader: Loader,
        device: str,
        limits: SessionLimits,
        principal: Principal = ANONYMOUS,
        submit: Submit | None = None,
        account: PrincipalMemory | None = None,
    ) -> None:
        check_opening(opening)
        self.engine = processing_pb2.OpenSession()
        self.engine.CopyFrom(opening)
        most = limits.max_requests_per_session
        self.max_requests = self.engine.max_requests = min(opening.max_requests or most, most)
        self.vocab_size = opening.vocab_size
        self.principal = principal
        self.device = device
        self.limits = limits
        compiled = None if core is None else CompiledBatch(opening.vocab_size, opening.max_draft_tokens, limits)
        self.batch = PersistentBatch(compiled, opening.max_draft_tokens, limits)
        self.pending_admissions = PendingAdmissions(principal.name, submit, limits.max_message_bytes)
        self.processors = LoadedProcessors(names, loader, principal)
        self.account = account or PrincipalMemory(limits.max_principal_memory)
        self.lending = Lending()
        self.reply_deadlines = ReplyDeadlines.of(limits, only_builtins=names.installed.has_only_builtins)
        self.trace: object = None
        self.expected_requests = min(opening.expected_requests, self.max_requests)
        self.waiting_rows = NOTHING_WAITS
        self.step_time = StepTime(limits.processor_timeout_seconds)

    def __len__(self) -> int:
        return len(self.batch.requests)

    @cached_property
    def regions(self) -> Regions:
        """The memory that it shares with the engine."""
        from logitport_session.shared_memory.regions import Regions

        cuda = _open_cuda(self.device) if self.limits.share_device_memory else None
        return Regions(self.limits.max_region_bytes, cuda)

    @property
    def pending(self) -> int:
        """Number of admissions that continue in the background, or are not reported yet."""
        return len(self.pending_admissions)

    @property
    def load(self) -> int:
        """Number of requests that the session holds, or will hold soon."""
        return max(len(self) + self.pending, self.expected_requests)

    @property
    def compiled_activity(self) -> tuple[int, float]:
        """The number of steps that the compiled core has answered, and when the last ended, in monotonic seconds."""
        compiled = self.batch.compiled
        return compiled.activity if compiled is not None else (0, 0.0)

    def take_compiled_counts(self) -> CompiledCounts | None:
        """Return the counts of these steps since the last call, or None. On any thread."""
        compiled = self.batch.compiled
        return compiled.take_counts() if compiled is not None else None

    def remove(self, frame: processing_pb2.RemoveRequests) -> None:
        """Drop requests and their state. A slot that is empty or has another generation is left unchanged."""
        check_size(frame, self.limits)
        slots = unpack_int32(frame.slots, "RemoveRequests.slots")
        generations = unpack_int32(frame.generations, "RemoveRequests.generations", len(slots))
        for slot, generation in zip(slots, generations, strict=True):
            request = self.batch.requests.get(slot)
            if request is not None and request.generation == generation:
                self.batch.drop(slot)
            self.pending_admissions.cancel(slot, generation)

    def get_programs(self, frame: processing_pb2.GetPrograms, reply: processing_pb2.Programs) -> None:
        """Send programs that the engine has to run. Raises NotFound, LimitExceeded."""
        write_programs(self.batch.requests.values(), frame.digests, self.limits.max_message_bytes, reply)

    def open_region(self, frame: processing_pb2.OpenRegion) -> tuple[int, Region]:
        """Open memory to share with the engine; return its id and the region. Raises InvalidArgument, LimitExceeded."""
        region_id, region = self.regions.open(frame.size_bytes, frame.replaces)
        self.lending.opened(region, self.batch.requests.values())
        return region_id, region

    def close(self) -> list[Future[None]]:
        """Cancel the pending admissions, and close the memory that the session shares with its engine.

        Returns:
            The admissions that still run.
        """
        self.account.session_ends()
        running = self.pending_admissions.close()
        if "regions" in vars(self):
            self.regions.close()
        return running


def _open_cuda(device: str) -> Cuda | None:
    if device == "cpu":
        return None
    from logitport.system.cuda_ipc import open_cuda

    return open_cuda(device)


def check_opening(opening: processing_pb2.OpenSession) -> None:
    """Check the message. Raises InvalidArgument, LimitExceeded."""
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
    if opening.max_draft_tokens > MAX_DRAFT_TOKENS:
        raise LimitExceeded(
            f"max_draft_tokens is {opening.max_draft_tokens}; the server accepts {MAX_DRAFT_TOKENS} per "
            "request and step: draft fewer"
        )
    check_token_ids(opening.eos_token_ids, opening.vocab_size, "eos_token_ids")
    if len(opening.eos_token_ids) > _MAX_EOS_TOKEN_IDS or len(opening.tokenizer_id) > _MAX_TOKENIZER_ID_LENGTH:
        raise InvalidArgument(
            f"eos_token_ids has {len(opening.eos_token_ids)} ids and tokenizer_id {len(opening.tokenizer_id)} "
            f"characters; the limits are {_MAX_EOS_TOKEN_IDS} and {_MAX_TOKENIZER_ID_LENGTH}"
        )
