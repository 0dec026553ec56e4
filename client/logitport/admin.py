"""The state of a server, and the output of its processors, as a client returns them."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import TYPE_CHECKING

from logitport.errors import escaped

if TYPE_CHECKING:
    from collections.abc import Iterable

    from logitport.shipping.request import ProcessorRef
    from logitport_proto import common_pb2


@dataclass(frozen=True)
class WorkerInfo:
    """A process of a server that runs shipped code.

    Attributes:
        process_id: on the server's host; 0 if it is not known.
        state: "starting", "busy" (in a call), "ready" (sessions use its processors) or "idle".
        memory_bytes: resident memory, with pages that it shares with other processes; 0 if it is not known.
        processors: the processor that is called, or else those that sessions use in this worker; at most 8.
        owner: principal that registered or shipped the code; "" if authentication is off.
        principal: principal that calls it; "" if authentication is off.
        tenant: its tenant, or "".
    """

    process_id: int
    state: str
    memory_bytes: int
    processors: tuple[str, ...]
    owner: str
    principal: str
    tenant: str


@dataclass(frozen=True)
class QuarantineInfo:
    """A processor that is not called for one caller, because it failed or was slow too often.

    Attributes:
        digest: of its payload.
        names: names that its owner has bound to it, sorted.
        owner: principal that registered or shipped the code; "" if authentication is off.
        principal: its quarantine holds for this principal; "" if authentication is off.
        tenant: its tenant, or "".
        reason: description of the failures that caused it.
    """

    digest: str
    names: tuple[str, ...]
    owner: str
    principal: str
    tenant: str
    reason: str


@dataclass(frozen=True)
class ProcessorTimes:
    """Times of one processor in the steps of a server since its start.

    The time of a step is the sum over its calls of the processor, with the wait for its worker.

    Attributes:
        processor: name of a built-in or installed one; class name and beginning of the digest of a shipped one;
            "(others)" for all further ones together.
        bounds_seconds: upper bounds of the buckets, ascending; the last bucket has none.
        counts: cumulative: element i counts the steps that took at most `bounds_seconds[i]`; one more at the end
            counts all steps.
        total_seconds: time of all these steps together.
        rows: number of rows that the processor was applied to.
    """

    processor: str
    bounds_seconds: tuple[float, ...]
    counts: tuple[int, ...]
    total_seconds: float
    rows: int


@dataclass(frozen=True)
class ServerStatus:
    """Status of one server at the moment of the call.

    Attributes:
        version: of the server.
        python_version: of its Python.
        device: where processors that read logits run, such as "cpu" or "cuda:0".
        uptime_seconds: since its start.
        draining: whether it opens no more sessions, because it was drained, or because it stops.
        sessions: number of open sessions.
        movable_sessions: number of those that can move to another server.
        max_sessions: limit of open sessions.
        requests: number of requests that the sessions hold.
        pending_requests: number of requests that are being admitted in the background.
        steps: number of steps since the start.
        accepts_code: whether it accepts shipped processors that are code.
        accepts_programs: whether it accepts programs.
        isolation: where shipped code runs: "process" or "none".
        requires_authentication: whether callers must authenticate.
        requires_signatures: whether payloads must be signed.
        registered_processors: number of registered processors.
        max_registered_processors: limit of registered processors.
        installed_processors: number of built-in and installed processors.
        loader_hits: loads of shipped code since the start that found the class loaded already.
        loader_misses: loads of shipped code since the start that unpickled it.
        worker_count: number of worker processes.
        max_workers: limit of worker processes; 0 if shipped code does not run in workers.
        workers_lost: worker processes since the start that were terminated because of a processor.
        workers: the worker processes; at most 256.
        quarantine_count: number of quarantines.
        quarantines: the quarantines; at most 256.
        processor_times: times of processors in steps. The server limits their number.
    """

    version: str
    python_version: str
    device: str
    uptime_seconds: float
    draining: bool
    sessions: int
    movable_sessions: int
    max_sessions: int
    requests: int
    pending_requests: int
    steps: int
    accepts_code: bool
    accepts_programs: bool
    isolation: str
    requires_authentication: bool
    requires_signatures: bool
    registered_processors: int
    max_registered_processors: int
    installed_processors: int
    loader_hits: int
    loader_misses: int
    worker_count: int
    max_workers: int
    workers_lost: int
    workers: tuple[WorkerInfo, ...]
    quarantine_count: int
    quarantines: tuple[QuarantineInfo, ...]
    processor_times: tuple[ProcessorTimes, ...]


@dataclass(frozen=True)
class SessionInfo:
    """An open session of a server. The server shortens texts that the engine has sent to 256 characters.

    Attributes:
        session_id: its id, as in the server's log.
        principal: principal that opened it; "" if authentication is off.
        engine: name and version of the engine, as it states them.
        model_name: the model, as the engine states it.
        transport: how frames are sent: "grpc" or "local".
        peer: the engine's end of the connection: HOST:PORT, or "unix".
        age_seconds: since it was opened.
        requests: number of requests that it holds.
        pending_requests: number of requests that are being admitted in the background.
        max_requests: limit of requests.
        steps: number of its steps.
        last_step_age_seconds: since its last step; None before the first one.
        vocab_size: width of the logits.
        datatype: of the logits: "FP32", "FP16" or "BF16".
        device: of the logits, as the engine states it.
        can_move: whether the engine can move it to another server.
        should_move: whether the server has stated that the engine should move it.
    """

    session_id: str
    principal: str
    engine: str
    model_name: str
    transport: str
    peer: str
    age_seconds: float
    requests: int
    pending_requests: int
    max_requests: int
    steps: int
    last_step_age_seconds: float | None
    vocab_size: int
    datatype: str
    device: str
    can_move: bool
    should_move: bool


@dataclass(frozen=True)
class DrainProgress:
    """How far a server is drained.

    Attributes:
        sessions: number of sessions that are still open.
        movable_sessions: number of those that can move to another server.
    """

    sessions: int
    movable_sessions: int


@dataclass(frozen=True)
class UnquarantineResult:
    """Result of lifting a quarantine at one server.

    Attributes:
        processor: the processor.
        was_quarantined: whether it was quarantined for any caller.
    """

    processor: ProcessorRef
    was_quarantined: bool


@dataclass(frozen=True)
class ProcessorOutput:
    """Output of a processor in a worker during one call. `str` escapes its control characters.

    Attributes:
        processor: digest of the processor.
        display_name: its class and the beginning of its digest.
        text: as the processor wrote it, at most 4,096 characters: the begin and the end of a longer one.
        time: when the server received it, in seconds since the Unix epoch.
    """

    processor: str
    display_name: str
    text: str
    time: float

    def __str__(self) -> str:
        at = datetime.datetime.fromtimestamp(self.time).strftime("%H:%M:%S.%f")[:-3]
        return f"{at} {escaped(self.display_name or self.processor)}\n{escaped(self.text).rstrip()}"

    @classmethod
    def all_from_proto(cls, outputs: Iterable[common_pb2.ProcessorOutput]) -> tuple[ProcessorOutput, ...]:
        """Convert messages, in their order."""
        return tuple(cls(each.processor, each.display_name, each.text, each.time) for each in outputs)
