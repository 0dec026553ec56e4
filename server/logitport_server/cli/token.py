"""`logitport token`."""

from __future__ import annotations

import sys
from datetime import datetime, timedelta, timezone
from typing import Annotated

from pydantic import BaseModel, Field

from logitport_server.access.token_file import PrincipalName, Scope, new_token
from logitport_server.config.option import Argument
from logitport_server.config.units import OrOff, Seconds
from logitport_session.trust.principals import CUDA

_CUDA = (
    "cuda: processors that this principal ships, for itself or for a tenant, run in processes that hold the server's "
    "GPU; such a process cannot be fully contained"
)
_CUDA_ALONE = "cuda alone permits no call: it only selects where code runs that the scope register accepts\n"


class Token(BaseModel):
    """Create a token. Print it, and its line for the file of --tokens. It cannot be printed again."""

    name: Argument[PrincipalName] = Field(
        description="name of the principal that the token authenticates, for example team/ci"
    )
    scope: Annotated[list[Scope], Field(min_length=1)] = Field(
        description="what the token permits: apply (call processors), register (ship code), admin (show the state of "
        "servers, drain them, manage the processors of other principals), cuda (run shipped code with access to the "
        "server's GPU; it cannot be fully isolated)"
    )
    expires: OrOff[Seconds] = Field(
        None,
        gt=0,
        description="how long the token is valid, for example 90d; without it, the token does not expire",
    )

    def run(self) -> None:
        now = datetime.now(timezone.utc).replace(microsecond=0)
        ends = now + timedelta(seconds=self.expires) if self.expires is not None else None
        token, grant = new_token(self.name, self.scope, ends)
        if CUDA in self.scope:
            print(f"{_CUDA_ALONE if len(self.scope) == 1 else ''}{_CUDA}", file=sys.stderr)  # noqa: T201
        print("The token, and the line for the file of --tokens:", file=sys.stderr)  # noqa: T201
        print(token)  # noqa: T201
        print(grant.line)  # noqa: T201
