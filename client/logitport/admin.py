"""One server of a client: its state, its sessions, its processors, and changes that need the scope "admin"."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from logitport import calls
from logitport.call_sender import Call, delete_call, get_call, list_call, register_call
from logitport.request import ProcessorRef
from logitport_proto import admin_pb2

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from logitport.call_sender import CallSender
    from logitport.payload.signing import PathLike
    from logitport.request import ProcessorLike
    from logitport.servers import ServerChannel
    from logitport.session.failover.registrations import Registrations

_Result = TypeVar("_Result")


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
        tenant: its tenant; "" for none.
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
        principal: principal for which it is quarantined; "" if authentication is off.
        tenant: its tenant; "" for none.
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

    The time of a step is that of all its calls of the processor, with the wait for its worker.

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
        loader_hits: loads of shipped code since the start for which the class was loaded already.
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


class ServerClient:
    """One server of a `Client`. No other server is called in place of one that fails.

    Each method raises AccessDenied without the scope that it needs, ServerUnavailable.

    Attributes:
        target: its address, HOST:PORT or unix:PATH.
    """

    def __init__(self, sender: CallSender, server: ServerChannel, registrations: Registrations) -> None:
        self._sender = sender
        self._server = server
        self._registrations = registrations
        self.target = server.target

    def status(self) -> ServerStatus:
        """Return the status of the server."""
        return self._call(Call("admin", "GetStatus", admin_pb2.GetStatusRequest(), _status))

    def sessions(self) -> Iterator[SessionInfo]:
        """Yield the open sessions, in the order in which they were opened. Requests them page by page."""
        token = ""
        while True:
            request = admin_pb2.ListSessionsRequest(page_token=token)
            page = self._call(Call("admin", "ListSessions", request, lambda reply: reply))
            yield from map(_session, page.sessions)
            if not (token := page.next_page_token):
                return

    def drain(self) -> DrainProgress:
        """Make the server open no more sessions, and state that its sessions should move.

        A repeated call returns the progress.
        """
        return self._call(
            Call("admin", "Drain", admin_pb2.DrainRequest(), lambda reply: _converted(DrainProgress, reply))
        )

    def unquarantine(self, name: str) -> UnquarantineResult:
        """Lift the quarantine of a processor that failed too often, by registered name or digest, for all callers.

        Servers with a common store share quarantines. Also succeeds if the processor is not quarantined.

        Raises:
            AccessDenied: the caller lacks the scope "admin".
            NotFound: no processor has this name or digest.
        """

        def result(reply: admin_pb2.UnquarantineResponse) -> UnquarantineResult:
            return UnquarantineResult(ProcessorRef.from_proto(reply.processor), reply.was_quarantined)

        request = calls.message(admin_pb2.UnquarantineRequest, processor=name)
        return self._call(Call("admin", "Unquarantine", request, result))

    def processors(self) -> list[ProcessorRef]:
        """List processors, as `Client.processors`. With the scope "admin", those of all owners."""
        return self._call(list_call())

    def processor(self, name: str) -> ProcessorRef:
        """Look up a processor, as `Client.processor`."""
        return self._call(get_call(name))

    def register(
        self,
        processor: ProcessorLike,
        *,
        name: str = "",
        replace: bool = False,
        shared: bool = False,
        signing_key: PathLike | None = None,
        lift: bool | None = None,
    ) -> ProcessorRef:
        """Register a processor, as `Client.register`, with this server alone. Needs the scope "register"."""
        call = register_call(processor, name, replace=replace, shared=shared, signing_key=signing_key, lift=lift)
        return self._call(call)

    def delete(self, name: str) -> tuple[str, ...]:
        """Delete a processor, as `Client.delete`."""
        names = self._call(delete_call(name))
        self._registrations.forget(name)
        return names

    def _call(self, call: Call[_Result]) -> _Result:
        return call.decode(self._sender.send(self._server, call))


def _status(reply: Any) -> ServerStatus:
    bounds = tuple(reply.time_bounds_seconds)
    return _converted(
        ServerStatus,
        reply,
        workers=tuple(_converted(WorkerInfo, one) for one in reply.workers),
        quarantines=tuple(_converted(QuarantineInfo, one) for one in reply.quarantines),
        processor_times=tuple(_converted(ProcessorTimes, one, bounds_seconds=bounds) for one in reply.processor_times),
    )


def _session(message: admin_pb2.SessionInfo) -> SessionInfo:
    return _converted(
        SessionInfo, message, last_step_age_seconds=message.last_step_age_seconds if message.steps else None
    )


def _converted(kind: Callable[..., _Result], message: Any, **others: Any) -> _Result:
    """Make a dataclass of the fields of a message with the same names, and of others. Repeated ones become tuples."""
    for name in kind.__annotations__.keys() - others.keys():
        value = getattr(message, name)
        others[name] = value if isinstance(value, str | int | float) else tuple(value)
    return kind(**others)
