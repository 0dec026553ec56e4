"""Opens a session. Imported at the first `Client.session`, because its modules load slowly."""

from __future__ import annotations

import logging
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from logitport.client.call_sender import Call
from logitport.client.embedded_server import EmbeddedSender
from logitport.errors import InvalidArgument, LimitExceeded, ServerUnavailable
from logitport.servers import trace_context
from logitport.session.failover.server_choice import ServerChoice
from logitport.session.requests.program_trust import ProgramTrust
from logitport.session.session import Session
from logitport.session.transports.grpc_stream import GrpcStream
from logitport_recording.record_options import VARIABLE, options_of

if TYPE_CHECKING:
    from logitport.client.call_sender import CallSender
    from logitport.servers.channels import ServerChannel
    from logitport.session.failover.registrations import Registrations
    from logitport.session.requests.program_trust import Mode
    from logitport_proto import processing_pb2
    from logitport_recording.record_options import Record

logger = logging.getLogger(__name__)


def open_session(
    sender: CallSender | EmbeddedSender,
    registrations: Registrations,
    opening: processing_pb2.OpenSession,
    *,
    with_torch: bool,
    transport: Literal["auto", "grpc", "local"],
    reconnect_seconds: float | None,
    programs: Mode | None,
    record: Record,
) -> tuple[Session, ServerChoice | None]:
    """Open a session, and return it with the choice of its server; None without servers.

    Args:
        sender: the client's.
        registrations: the client's.
        opening: the first message, without `runs_programs` and `can_move`, which are set here.
        with_torch: whether logits are torch tensors.
        transport: see `Client.session`.
        reconnect_seconds: see `Client.session`.
        programs: see `Client.session`.
        record: see `Client.session`.

    Raises:
        InvalidArgument, ServerUnavailable: see `Client.session`.
    """
    servers = sender.servers
    trust = ProgramTrust(programs, registrations.has)
    opening.runs_programs = trust.runs_programs
    opening.can_move = not servers.single

    choice = None if isinstance(sender, EmbeddedSender) else _choice(sender, registrations)
    connection = sender if isinstance(sender, EmbeddedSender) else choice
    assert connection is not None  # noqa: S101 - one of the two is set
    others = None if servers.single else choice
    opened = partial(
        _new_session,
        record,
        registrations,
        connection.connect,
        opening,
        restore=connection.restore,
        refused=connection.refused,
        with_torch=with_torch,
        local=transport,
        timeout=sender.timeout,
        reconnect_seconds=sender.timeout if reconnect_seconds is None else reconnect_seconds,
        trust=trust,
        answers=None if others is None else others.answers,
        elsewhere=None if others is None else others.elsewhere,
    )
    try:
        session = opened()
    except (LimitExceeded, ServerUnavailable) as error:
        if servers.single or sender.closed or getattr(error, "timed_out", False):
            raise
        session = opened()  # on another server: the first one has changed since it reported its load
    if not servers.single:
        with suppress(ServerUnavailable):  # the session then reconnects, and repeats it
            connection.restore()
    return session, choice


def _choice(sender: CallSender, registrations: Registrations) -> ServerChoice:
    """Return the choice of a session's server."""

    def stream(server: ServerChannel, wait_seconds: float, open_seconds: float) -> GrpcStream:
        sender.check_open()
        return GrpcStream(
            server.channel,
            server.target,
            sender.timeout,
            metadata=sender.connection.metadata + trace_context.metadata(),
            encrypted=sender.connection.encrypted,
            max_message_bytes=sender.max_message_bytes,
            wait_seconds=wait_seconds,
            open_seconds=open_seconds,
        )

    def register(server: ServerChannel, method: str, message: Any) -> Any:
        return sender.send(server, Call("registry", method, message, lambda reply: reply))

    return ServerChoice(sender.servers, stream, registrations, register)


def _new_session(
    record: Record, registrations: Registrations, connect: Any, opening: processing_pb2.OpenSession, **arguments: Any
) -> Session:
    """Make a session, recorded or not. If LOGITPORT_RECORD names a file that cannot be opened, it is not recorded."""
    options = options_of(record)
    if options is not None:
        from logitport_recording.writing.recorder import Recorder
        from logitport_recording.writing.recording_session import RecordingSession

        try:
            recorder = Recorder(options, opening, registrations.payload)
        except InvalidArgument as error:
            if record is not None:
                raise
            logger.warning("nothing is recorded, although %s is set: %s", VARIABLE, error)
        else:
            return RecordingSession(connect, opening, recorder=recorder, **arguments)
    return Session(connect, opening, **arguments)
