"""One server of a client: its state, its sessions, its processors, and changes that need the scope "admin"."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from logitport.admin import (
    DrainProgress,
    ProcessorTimes,
    QuarantineInfo,
    ServerStatus,
    SessionInfo,
    UnquarantineResult,
    WorkerInfo,
)
from logitport.client.call_sender import Call, delete_call, get_call, list_call, register_call
from logitport.shipping import calls
from logitport.shipping.request import ProcessorRef
from logitport_proto import admin_pb2

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from logitport.client.call_sender import CallSender
    from logitport.payload.signing import PathLike
    from logitport.servers.channels import ServerChannel
    from logitport.session.failover.registrations import Registrations
    from logitport.shipping.request import ProcessorLike

_Result = TypeVar("_Result")


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
        """Yield the open sessions, the oldest first. Requests them page by page."""
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
        """List processors, as `Client.processors`. With the scope "admin", lists all owners' processors."""
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
