"""`logitport ops`."""

from __future__ import annotations

from pydantic import BaseModel
from rich.console import Console
from rich.table import Column, Table


class Ops(BaseModel):
    """List the implementations of every op by platform, whether this machine has the platform, and the reason."""

    def cli_cmd(self) -> None:
        """Print the table."""
        import logitport_builtins  # noqa: F401 - registers its own ops, if it has any
        from logitport import ops

        ops.configure()
        table = Table("op", "platform", "here", Column("runs", overflow="fold"), "why")
        for row in ops.list_ops():
            table.add_row(row.op, row.platform, "yes" if row.active else "", row.implementation, row.why)
        Console().print(table)
