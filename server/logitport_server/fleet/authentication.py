"""Refuses Ray clusters that run code without authentication."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logitport_server.config import StartupError

if TYPE_CHECKING:
    from collections.abc import Mapping

VARIABLE = "RAY_AUTH_MODE"


def require_token_mode(environment: Mapping[str, str], where: str) -> None:
    """Check that Ray authenticates its callers.

    Args:
        environment: variables of a process.
        where: which process, for the message.

    Raises:
        StartupError: it does not.
    """
    if environment.get(VARIABLE, "").lower() != "token":
        raise StartupError(
            f"{VARIABLE} is not set to token {where}: without it, any program that reaches the cluster's ports can run "
            "code on all of its nodes. Create a token with `ray get-auth-token --generate`, copy ~/.ray/auth_token to "
            f"each node, and set {VARIABLE}=token for every `ray start` and for `logitport ray`"
        )
