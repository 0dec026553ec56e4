"""The table of a server's variables in docs/variables.md: `python -m tests.docs.server_variables` writes it."""

from __future__ import annotations

import re

from logitport_server.config import ServerConfig
from logitport_server.config.option import choices_of, heading_of, is_list
from logitport_server.config.sources import VARIABLES
from logitport_server.config.values import text_of
from tests.docs.pages import ROOT

PAGE = ROOT / "docs" / "variables.md"
_TABLE = re.compile(r"(?<=<!-- server:begin -->\n).*?(?=<!-- server:end -->)", re.DOTALL)


def written() -> str:
    """The table of the page, between its marks."""
    (table,) = _TABLE.findall(PAGE.read_text())
    return str(table)


def expected() -> str:
    """The table of all options of `logitport serve`, with a row for each heading of its help."""
    lines = ["| variable | default | meaning |", "|---|---|---|"]
    heading = ""
    for variable, name in VARIABLES.items():
        field = ServerConfig.model_fields[name]
        if (current := heading_of(ServerConfig, name)) != heading:
            heading = current
            lines.append(f"| **{heading}** | | |")
        default = "`[]`" if is_list(field) else f"`{text_of(field, field.default)}`"
        choices = [choice for choice in choices_of(field) if choice not in (field.description or "")]
        meaning = f"{field.description}{': ' if choices else ''}{', '.join(choices)}"
        lines.append(f"| `{variable}` | {default} | {_plain(meaning)} |")
    return "\n".join(lines) + "\n"


def _plain(text: str) -> str:
    return re.sub(r"[*|<]", r"\\\g<0>", text)


if __name__ == "__main__":
    PAGE.write_text(_TABLE.sub(lambda _: expected(), PAGE.read_text()))
