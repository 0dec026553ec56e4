"""The installed processors that the operator's options select."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from logitport.errors import InvalidArgument
from logitport_server.lifecycle.start_errors import StartupError
from logitport_session.processor_sources import installed

if TYPE_CHECKING:
    from collections.abc import Iterable

    from logitport_server.config import ServerConfig


def load(config: ServerConfig, given: Iterable[object] = ()) -> dict[str, Any]:
    """Return the installed processors; see `logitport_session.processor_sources.installed.load`.

    `given` are further classes or functions, passed by a program that embeds the server. Raises StartupError.
    """
    try:
        return installed.load(config.logits_processors, with_entry_points=config.entry_points, given=given)
    except InvalidArgument as error:
        raise StartupError(error.message) from error
