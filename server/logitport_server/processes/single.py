"""One server in this process."""

from __future__ import annotations

import os
import resource
from typing import TYPE_CHECKING

from logitport_server.front_door.launched import launch
from logitport_server.lifecycle import time_slice
from logitport_server.lifecycle.stop_signals import StopSignals
from logitport_session.resources import descriptors

if TYPE_CHECKING:
    from collections.abc import Callable

    from logitport_server.config import ServerConfig
    from logitport_server.transports.readiness import ReadyServer


def prevent_core_files() -> None:
    """Prevent core files of this process and its children: they would have the tokens of callers.

    Not by PR_SET_DUMPABLE: a process of a normal user then cannot read its own /proc/self/fd. The hard limit stays.
    """
    hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
    # 1, not 0: with 0 the kernel still passes the core to a program that `core_pattern` names. With 1 it does not, and
    # writes no file, because a file would need 4096 bytes. Source: `do_coredump` in fs/coredump.c of Linux.
    resource.setrlimit(resource.RLIMIT_CORE, (1 if hard else 0, hard))


def serve(config: ServerConfig, on_ready: Callable[[ReadyServer], None] | None = None) -> None:
    """Prepare the process, and serve until SIGTERM or SIGINT.

    Args:
        config: the options.
        on_ready: see `logitport_server.running.run`.

    Raises:
        StartupError: shipped processors must be refused on this machine.
        SystemExit: the server cannot start.
    """
    # torch's threads spin for a while when they have nothing to do, on cores that the engine could use.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    prevent_core_files()
    time_slice.shorten()
    config.start_logging()
    descriptors.raise_limit()  # before the zygotes, which inherit it
    launched = launch(config)  # until here, a signal ends the process, and the zygotes end with it
    signals = StopSignals()
    with signals.ending_the_process():
        from logitport_server.running import run  # after the zygotes have started: its imports take a while, too

    run(config, launched=launched, on_ready=on_ready, signals=signals)
