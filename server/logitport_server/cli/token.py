"""`logitport token`."""

from __future__ import annotations

import sys
from datetime import datetime, timedelta, timezone
from typing import Annotated

from pydantic import BaseModel, Field
from pydantic_settings import CliPositionalArg

from logitport_server.access.tokens import PrincipalName, Scope, new_token
from logitport_server.principals import CUDA

_CUDA = (
    "cuda: processors that this principal ships, for its tenants as well, run in processes that hold the server's GPU, "
    "and such a process cannot be fully contained"
)
_CUDA_ALONE = "cuda alone lets nobody call anything: it tells how code runs that `register` lets in\n"


class Token(BaseModel):
    """Make a token: print it, which is the only time that anybody sees it, and the line for the file of --tokens."""

    name: CliPositionalArg[PrincipalName] = Field(description="who the token stands for, such as team/ci")
    scope: Annotated[list[Scope], Field(min_length=1)] = Field(
        description="what it allows; may be given more than once: apply (call processors), register (ship code), admin "
        "(manage what is others'), cuda (have one's code hold the server's GPU, which nothing can fully contain)"
    )
    expires: Annotated[timedelta, Field(gt=timedelta(0))] | None = Field(
        None, description="for how long it is of use, such as 90d; for ever if not given"
    )

    def cli_cmd(self) -> None:
        """Make it."""
        ends = datetime.now(timezone.utc).replace(microsecond=0) + self.expires if self.expires is not None else None
        token, grant = new_token(self.name, self.scope, ends)
        if CUDA in self.scope:
            print(f"{_CUDA_ALONE if len(self.scope) == 1 else ''}{_CUDA}", file=sys.stderr)  # noqa: T201
        print("The token, and the line for the file of --tokens:", file=sys.stderr)  # noqa: T201
        print(token)  # noqa: T201
        print(grant.line)  # noqa: T201
