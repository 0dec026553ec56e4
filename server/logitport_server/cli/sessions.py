"""`logitport sessions`."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from logitport_server.cli.display.quantities import NOTHING, age
from logitport_server.cli.display.tables import Column, number
from logitport_server.cli.servers import TableCommand, end, print_json

if TYPE_CHECKING:
    from logitport.admin import SessionInfo

ID_LENGTH = 12
_COLUMNS = (
    Column("SESSION"),
    Column("PRINCIPAL"),
    Column("ENGINE"),
    Column("TRANSPORT"),
    Column("PEER"),
    Column("STATE"),
    number("REQUESTS"),
    number("STEPS"),
    Column("LAST STEP"),
    Column("AGE"),
)
_WIDE_COLUMNS = (
    Column("MODEL"),
    number("VOCABULARY"),
    Column("DTYPE"),
    Column("DEVICE"),
    number("PENDING"),
    number("LIMIT"),
    Column("CAN MOVE"),
)


class ListSessions(TableCommand):
    """List the open sessions of each server, in the order in which they were opened.

    Needs the scope "admin". The token is read from LOGITPORT_TOKEN.
    """

    def run(self) -> None:
        answers = self.call(lambda server: list(server.sessions()))
        found = [(answer.server, session) for answer in answers for session in answer.value or ()]
        if self.prints_json:
            print_json([{"server": server, **asdict(session)} for server, session in found])
        else:
            columns = (*_COLUMNS, *_WIDE_COLUMNS) if self.is_wide else _COLUMNS
            rows = ((server, _row(session, wide=self.is_wide)) for server, session in found)
            self.show(columns, rows, answers)
        end(answers)


def _row(session: SessionInfo, *, wide: bool) -> tuple[object, ...]:
    idle = session.last_step_age_seconds
    row: tuple[object, ...] = (
        session.session_id if wide else session.session_id[:ID_LENGTH],
        session.principal or NOTHING,
        session.engine or NOTHING,
        session.transport,
        session.peer,
        "moving" if session.should_move else "open",
        session.requests,
        session.steps,
        NOTHING if idle is None else age(idle),
        age(session.age_seconds),
    )
    if not wide:
        return row
    return (
        *row,
        session.model_name or NOTHING,
        session.vocab_size,
        session.datatype,
        session.device or NOTHING,
        session.pending_requests,
        session.max_requests,
        "yes" if session.can_move else "no",
    )
