"""One engine's persistent batch: admits requests and computes steps. Independent of gRPC."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logitport.compiled import core
from logitport.core.cuda_ipc import open_cuda
from logitport_proto import processing_pb2
from logitport_server.principals import ANONYMOUS
from logitport_server.session.columns import unpack_int32
from logitport_server.session.compiled_batch import CompiledBatch
from logitport_server.session.engine_programs import write_programs
from logitport_server.session.hosting import HostedProcessors
from logitport_server.session.lending import Lending
from logitport_server.session.memory import MemoryAccounts
from logitport_server.session.opening import check_opening
from logitport_server.session.pending_admissions import PendingAdmissions
from logitport_server.session.persistent_batch import PersistentBatch
from logitport_server.session.reply_deadlines import ReplyDeadlines
from logitport_server.session.session_admissions import SessionAdmissions
from logitport_server.session.session_steps import SessionSteps
from logitport_server.session.step_limits import check_size
from logitport_server.shared_memory.regions import Regions

if TYPE_CHECKING:
    from concurrent.futures import Future

    import torch

    from logitport_server.config import ServerConfig
    from logitport_server.executors import Executor
    from logitport_server.principals import Principal
    from logitport_server.registry.registry import Registry
    from logitport_server.session.pending_admissions import Submit
    from logitport_server.session.step_counts import CompiledCounts
    from logitport_server.shared_memory.regions import Region

# Ids of a frame times processors of a step on the event loop: at most two milliseconds, apart from the histories, which
# the compiled core counts.
_MAX_SHORT_COMPILED_WORK = 1 << 14


class EngineSession:
    """Requests by slot, each with its history and state.

    Not thread-safe: an engine's frames are processed one at a time. Admissions in the background run on other threads.

    Args:
        opening: the message that opens it.
        registry: finds processors.
        executor: hosts them.
        device: where logits are processed that are not sent to workers.
        limits: the server's options.
        principal: the caller that opens it.
        submit: runs admissions in the background. Without it, all requests are admitted before the reply.
        memory: has the account of the principal, which is charged with the memory of the requests; by default, the
            session has an account of its own.

    Attributes:
        principal: the caller that opened it.
        limits: the server's options.
        max_requests: the number of its slots.
        batch: the admitted requests.
        admissions: admits requests.
        steps: computes the steps.
        regions: the memory that it shares with the engine.
        reply_deadlines: the deadlines to state to the engine.
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
        memory: MemoryAccounts | None = None,
    ) -> None:
        check_opening(opening)
        self.principal = principal
        self.limits = limits
        self.max_requests = min(
            opening.max_requests or limits.max_requests_per_session, limits.max_requests_per_session
        )
        engine = processing_pb2.OpenSession()
        engine.CopyFrom(opening)
        engine.max_requests = self.max_requests
        self.regions = Regions(limits.max_region_bytes, open_cuda(device) if limits.share_device_memory else None)
        self._lending = Lending(self.regions)
        compiled = None if core is None else CompiledBatch(opening.vocab_size, opening.max_draft_tokens, limits)
        self.batch = PersistentBatch(compiled, opening.max_draft_tokens, limits)
        self._processors = HostedProcessors(registry, executor, principal)
        self._memory = memory or MemoryAccounts(limits.max_principal_memory)
        self._account = self._memory.of(principal.name)
        self._pending = PendingAdmissions(principal.name, submit, limits.max_message_bytes)
        self.admissions = SessionAdmissions(
            engine,
            self.batch,
            self._pending,
            self._processors,
            self._lending,
            principal,
            device,
            limits,
            self._account,
        )
        self.steps = SessionSteps(engine, self.batch, self._pending, self.regions, self._lending, device, limits)
        self.reply_deadlines = ReplyDeadlines.of(limits, only_builtins=registry.has_only_builtins)

    def __len__(self) -> int:
        return len(self.batch.requests)

    @property
    def pending(self) -> int:
        """Number of admissions that continue in the background, or are not reported yet."""
        return len(self._pending)

    @property
    def waiting(self) -> int:
        """Number of admissions in the background that have not begun."""
        return self._pending.waiting

    @property
    def load(self) -> int:
        """Number of requests that the session holds, or will hold soon."""
        return max(len(self) + self.pending, self.steps.expected_requests)

    @property
    def compiled_activity(self) -> tuple[int, float]:
        """The number of steps that the compiled core has answered, and when the last ended, in monotonic seconds."""
        compiled = self.batch.compiled
        return compiled.activity if compiled is not None else (0, 0.0)

    def take_compiled_counts(self) -> CompiledCounts | None:
        """Return the counts of these steps since the last call; None if there was none. On any thread."""
        compiled = self.batch.compiled
        return compiled.take_counts() if compiled is not None else None

    def is_short(self, data: bytes) -> bool:
        """Whether a compiled step with this frame may run on the event loop, if its histories are short."""
        return len(data) / 4 * max(1, self.batch.longest_chain) <= _MAX_SHORT_COMPILED_WORK

    def remove(self, frame: processing_pb2.RemoveRequests) -> None:
        """Drop requests and their state. A slot that is empty or has another generation is left unchanged."""
        check_size(frame, self.limits)
        slots = unpack_int32(frame.slots, "RemoveRequests.slots")
        generations = unpack_int32(frame.generations, "RemoveRequests.generations", len(slots))
        for slot, generation in zip(slots, generations, strict=True):
            request = self.batch.requests.get(slot)
            if request is not None and request.generation == generation:
                self.batch.drop(slot)
            self._pending.cancel(slot, generation)

    def get_programs(self, frame: processing_pb2.GetPrograms, reply: processing_pb2.Programs) -> None:
        """Send programs that the engine has to run. Raises NotFound, LimitExceeded."""
        write_programs(self.batch.requests.values(), frame.digests, self.limits.max_message_bytes, reply)

    def open_region(self, frame: processing_pb2.OpenRegion) -> tuple[int, Region]:
        """Open memory to share with the engine; return its id and the region. Raises InvalidArgument, LimitExceeded."""
        region_id, region = self.regions.open(frame.size_bytes, frame.replaces)
        self._lending.opened(region, self.batch.requests.values())
        return region_id, region

    def close(self) -> list[Future[None]]:
        """Cancel the pending admissions, and close the memory that the session shares with its engine.

        Returns:
            The admissions that still run.
        """
        self._memory.session_ends(self._account)
        running = self._pending.close()
        self.regions.close()
        return running
