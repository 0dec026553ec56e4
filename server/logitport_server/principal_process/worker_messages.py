"""Messages about workers: the front door starts them, and a principal's process calls them."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from logitport_server.principal_process.message import Message
from logitport_session.trust.principals import Party, TrustDomain


class WorkerSettings(msgspec.Struct, kw_only=True):
    """What a process needs to know to run shipped processors. Part of its start.

    Attributes:
        isolated: whether they run in workers; otherwise in the process itself.
        call_seconds, load_seconds: deadlines of workers.
        pythons: minor versions of the Pythons of workers, besides the running one.
        program_milliseconds: how long a program may take for a row, in the worst case.
        nodes: device nodes of the GPU that workers may hold; none without one.
    """

    isolated: bool
    call_seconds: float
    load_seconds: float
    pythons: list[str]
    program_milliseconds: float
    nodes: list[str] = []


class Domain(msgspec.Struct, array_like=True):
    """A trust domain of the process's principal: a `TrustDomain` without the principal."""

    owner: str
    tenant: str
    digest: str

    @staticmethod
    def of(domain: TrustDomain | None) -> Domain:
        """Convert a trust domain. Code without one runs in no worker."""
        return Domain("", "", "") if domain is None else Domain(domain.owner, domain.party.tenant, domain.digest)

    def trust_domain(self, principal: str) -> TrustDomain:
        """Return the trust domain of a process with this principal."""
        return TrustDomain(self.owner, Party(principal, self.tenant), self.digest)


class ForkWorker(Message):
    """Fork a worker for a trust domain. The answer is `WorkerForked` or `WorkerNotForked`.

    Attributes:
        worker: number of the worker; another one for each call.
        python: minor version of its Python.
        wants_gpu: whether it should hold the GPU, which the front door decides.
    """

    worker: int
    python: str
    domain: Domain
    wants_gpu: bool = False


class WorkerForked(Message):
    """A worker. The descriptors are its connection and its pidfd."""

    holds_gpu: bool


class WorkerNotForked(Message):
    """A worker could not be forked.

    Attributes:
        reason: a predicate, as in `WorkerGone`.
        zygote_gone: whether the zygote has ended meanwhile.
    """

    reason: str
    zygote_gone: bool = False


class WorkerEnded(Message):
    """A worker has ended.

    Attributes:
        status: its exit status; None when it has ended with its zygote.
    """

    worker: int
    status: int | None


class RequestSlot(Message):
    """Lend a slot to the process. The answer is `SlotGranted` or `SlotRefused`.

    Attributes:
        seconds: how long the answer may take: other processes may have to give one up.
        has_idle: whether the process has an idle worker, which ends before other principals' workers.
        counts_share: whether the principal may claim a slot of principals above their share.
    """

    seconds: float
    has_idle: bool = False
    counts_share: bool = True


class SlotGranted(Message):
    """The process has a further slot."""


class SlotRefused(Message):
    """No slot is free.

    Attributes:
        total: number of slots.
        held: by the principal, in all its processes.
        share: the principal's share.
        is_due: whether the principal is below its share, and others above theirs have not given way in time.
    """

    total: int
    held: int
    share: int
    is_due: bool


class ReleaseSlot(Message):
    """The process has given up a slot, and ended the worker in it."""


class ClaimSlot(Message):
    """Give up a slot as soon as one of the process's workers is in no call."""


class CancelClaim(Message):
    """One `ClaimSlot` less is to be met."""


class TakeIdleSlot(Message):
    """Give up the slot of an idle worker at once. `ReleaseSlot` comes before the answer, which is `SlotTaken`."""


class SlotTaken(Message):
    """Whether the process had an idle worker."""

    taken: bool


class RecordFailure(Message):
    """Charge a processor the end of its worker, as `Quarantine.record_failure`.

    A `QuarantineSnapshot` comes before the answer if quarantines have begun.
    """

    domain: Domain
    digest: str
    reason: str
    seconds: float


class RecordSlowCall(Message):
    """Charge a processor a slow call. Otherwise as `RecordFailure`."""

    domain: Domain
    digest: str
    seconds: float


class QuarantinedProcessor(msgspec.Struct, array_like=True):
    """A processor in quarantine in one trust domain."""

    domain: Domain
    digest: str
    reason: str


class QuarantineSnapshot(Message):
    """All quarantines that concern the process's principal.

    Attributes:
        own: those in its trust domains.
        for_all: reasons of those for all callers, by digest.
    """

    own: list[QuarantinedProcessor]
    for_all: dict[str, str]


class RecordOutput(Message):
    """Keep what a processor has printed in a call.

    Attributes:
        processor: its key.
        name: its display name.
    """

    processor: str
    name: str
    text: str


class FindGpuGrant(Message):
    """Find whether workers of this owner may hold the GPU. The answer is `GpuGrant`."""

    owner: str


class GpuGrant(Message):
    """Whether workers of the owner may hold the GPU."""

    granted: bool


class DescribeWorkers(Message):
    """Describe the workers of the process. The answer is `WorkerDescriptions`."""


class WorkerDescription(msgspec.Struct, array_like=True):
    """A worker: the fields of `WorkerReport`."""

    process_id: int
    state: Literal["starting", "busy", "ready", "idle"]
    processors: list[str]
    domain: Domain


class WorkerDescriptions(Message):
    """The workers of a process."""

    workers: list[WorkerDescription]


TO_PROCESS: tuple[type[Any], ...] = (
    WorkerForked,
    WorkerNotForked,
    WorkerEnded,
    SlotGranted,
    SlotRefused,
    ClaimSlot,
    CancelClaim,
    TakeIdleSlot,
    QuarantineSnapshot,
    GpuGrant,
    DescribeWorkers,
)
TO_FRONT_DOOR: tuple[type[Any], ...] = (
    ForkWorker,
    RequestSlot,
    ReleaseSlot,
    SlotTaken,
    RecordFailure,
    RecordSlowCall,
    RecordOutput,
    FindGpuGrant,
    WorkerDescriptions,
)
