"""`logitport unquarantine`."""

from __future__ import annotations

from pydantic import Field
from pydantic_settings import CliPositionalArg

from logitport_server.cli.display.text import escape
from logitport_server.cli.servers import ServersCommand, end, known


class Unquarantine(ServersCommand):
    """Lift the quarantine of a processor at each server, so that it is called again.

    Needs the scope "admin". The token is read from LOGITPORT_TOKEN.
    """

    processor: CliPositionalArg[str] = Field(description="registered name or digest of the processor")

    def cli_cmd(self) -> None:
        """Lift the quarantine."""
        answers = known(self.call(lambda server: server.unquarantine(self.processor)))
        for answer in answers:
            if answer.error is None:
                processor = answer.value.processor
                name = ", ".join(processor.names) or processor.display_name
                where = f" at {answer.server}" if len(answers) > 1 else ""
                lifted, none = f"lifted the quarantine of {name}", f"{name} is not quarantined"
                print(escape(f"{lifted if answer.value.was_quarantined else none}{where}"))  # noqa: T201
        end(answers)
