"""`logitport sessions` and `logitport drain`."""

from __future__ import annotations

import sys
import time
from dataclasses import asdict

from pydantic import Field

from logitport_server.cli.display import Column, age, number
from logitport_server.cli.servers import ServersCommand, TableCommand, call_each, end, print_json
from logitport_server.config.option import Argument
from logitport_server.config.units import Seconds

ID_LENGTH = 12
_POLL_SECONDS = 0.2
_COLUMNS = (
    Column("SESSION", lambda session: session.session_id[:ID_LENGTH]),
    Column("PRINCIPAL", "principal"),
    Column("ENGINE", "engine"),
    Column("TRANSPORT", "transport"),
    Column("PEER", "peer"),
    Column("STATE", lambda session: "moving" if session.should_move else "open"),
    number("REQUESTS", "requests"),
    number("STEPS", "steps"),
    Column("LAST STEP", lambda session: age(session.last_step_age_seconds)),
    Column("AGE", lambda session: age(session.age_seconds)),
)
_WIDE_COLUMNS = (
    Column("SESSION", "session_id"),
    *_COLUMNS[1:],
    Column("MODEL", "model_name"),
    number("VOCABULARY", "vocab_size"),
    Column("DTYPE", "datatype"),
    Column("DEVICE", "device"),
    number("PENDING", "pending_requests"),
    number("LIMIT", "max_requests"),
    Column("CAN MOVE", lambda session: "yes" if session.can_move else "no"),
)


class ListSessions(TableCommand):
    """List the open sessions of each server, in the order in which they were opened.

    Needs the scope "admin". The token is read from LOGITPORT_TOKEN.
    """

    def run(self) -> None:
        answers = self.call(lambda server: list(server.sessions()))
        found = [(answer.server, session) for answer in answers for session in answer.value or ()]
        if self.as_json:
            print_json([{"server": server, **asdict(session)} for server, session in found])
        else:
            self.show(_WIDE_COLUMNS if self.wide else _COLUMNS, found, answers)
        end(answers)


class Drain(ServersCommand):
    """Make servers open no more sessions, and wait until their sessions have moved to other servers.

    The servers go on until they are stopped. The token is read from LOGITPORT_TOKEN; it needs the scope "admin".
    """

    # Not the document or name of a fleet: with all of its servers drained, no server opens a session.
    target: Argument[str] = Field(
        description="address of the server, HOST:PORT or unix:PATH, or several, separated by commas; not all servers "
        "of the fleet: sessions move to the others"
    )
    timeout_seconds: Seconds = Field(60.0, ge=0, description="how long to wait for the sessions")

    def addresses(self) -> list[str]:
        """The addresses, each of them of one server."""
        return self.target.split(",")

    def run(self) -> None:
        deadline = time.monotonic() + self.timeout_seconds
        with self.client() as client:
            servers = client.servers()
            answers = call_each(servers, lambda server: server.drain())
            while any(one.value and one.value.movable_sessions for one in answers) and time.monotonic() < deadline:
                time.sleep(_POLL_SECONDS)
                answers = call_each(servers, lambda server: server.drain())
        late = False
        for server, state, _ in answers:
            if state is None:
                continue
            left = f"{state.sessions} sessions are left, {state.movable_sessions} of which can move"
            if state.movable_sessions:
                late = True
                waited = f"was not drained within {self.timeout_seconds:g} s"
                print(f"logitport: {server} {waited}: {left}", file=sys.stderr)  # noqa: T201
            else:
                print(f"drained {server}; {left}")  # noqa: T201
        end(answers)
        if late:
            sys.exit(1)
