"""Commands that have subcommands."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import BaseModel
from pydantic_settings import CliApp, get_subcommand

from logitport_server.config import UsageError

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo


class CommandGroup(BaseModel):
    """A command with subcommands as its fields."""

    def cli_cmd(self) -> None:
        """Run the subcommand. Raises UsageError if none is given."""
        if get_subcommand(self, is_required=False) is None:
            names = (_name(name, field) for name, field in type(self).model_fields.items())
            raise UsageError(
                f"a command is missing; write one of {', '.join(names)} after {type(self).__name__.lower()}"
            )
        CliApp.run_subcommand(self)


def _name(name: str, field: FieldInfo) -> str:
    return field.validation_alias if isinstance(field.validation_alias, str) else name
