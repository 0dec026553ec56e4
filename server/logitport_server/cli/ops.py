"""`logitport ops`."""

from __future__ import annotations

from pydantic import BaseModel
from rich.console import Console
from rich.table import Column, Table


class Ops(BaseModel):
    """List what applies edits on every platform, whether this machine has the platform, and the reason."""

    def cli_cmd(self) -> None:
        """Print the table."""
        from logitport import ops

        ops.configure()
        table = Table("platform", "here", Column("runs", overflow="fold"), "why")
        for row in ops.list_implementations():
            table.add_row(row.platform, "yes" if row.active else "", row.method, row.why)
        Console().print(table)
