"""What a server launches before it imports the rest: the zygotes, whose imports take seconds."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from logitport_server.front_door import session_zygote
from logitport_server.front_door.setups import setup_of
from logitport_server.lifecycle.start_errors import StartupError
from logitport_server.worker.start import start_first_zygote

if TYPE_CHECKING:
    from collections.abc import Iterable

    from logitport_server.config import ServerConfig
    from logitport_server.front_door.session_zygote import LaunchedZygote
    from logitport_server.principal_process.setup import Setup
    from logitport_server.worker.start import StartedZygote


class Launched(NamedTuple):
    """The zygotes of a server; their imports may still run.

    Attributes:
        setup: of the processes of principals.
        sessions: forks the processes of principals.
        workers: forks the workers of the server's own Python; None if there are no workers.
    """

    setup: Setup
    sessions: LaunchedZygote
    workers: StartedZygote | None

    def close(self) -> None:
        """End the zygotes of a server that does not start."""
        self.sessions.control.close()
        self.sessions.process.kill()
        self.sessions.process.wait()
        if self.workers is not None:
            self.workers.control.close()
            self.workers.process.kill()
            self.workers.process.wait()


def launch(config: ServerConfig, processors: Iterable[object] = ()) -> Launched:
    """Launch the zygotes.

    Args:
        config: the options.
        processors: further installed processors, passed by a program that embeds the server.

    Raises:
        StartupError: shipped processors must be refused on this machine, or no process can be started.
        PayloadError: a tokenizer cannot be read.
    """
    if not hasattr(os, "pidfd_open"):
        raise StartupError(
            "the server needs Linux: run it in a container or a virtual machine, or use sessions in the process of the "
            "engine (LOGITPORT_TARGET=embedded)"
        )
    setup = setup_of(config, processors)
    try:
        sessions = session_zygote.launch(setup)
    except OSError as error:
        raise StartupError(f"no process for sessions can be started: {error}") from error
    try:
        return Launched(setup, sessions, start_first_zygote(config))
    except BaseException:
        Launched(setup, sessions, None).close()
        raise
