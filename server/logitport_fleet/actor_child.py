"""The processes of a fleet: their priority, their environment, and a server as the child of an actor."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

# Ray limits the threads of an actor's libraries to its CPUs, which are none, and redirects breakpoints to itself.
_SET_BY_RAY = ("OMP_NUM_THREADS", "PYTHONBREAKPOINT")


def child_environment(environment: Mapping[str, str], at_start: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a server: without what Ray has added. One variable may be the cluster's token.

    Args:
        environment: of this process.
        at_start: the same when the process was started.
    """
    return {
        name: value
        for name, value in environment.items()
        if not name.startswith("RAY_") and (name not in _SET_BY_RAY or name in at_start)
    }


def environment_at_start() -> dict[str, str]:
    """Return the environment at the start of this process, without later changes."""
    pairs = Path("/proc/self/environ").read_bytes().split(b"\0")
    return dict(os.fsdecode(pair).partition("=")[::2] for pair in pairs if pair)


def leave_background() -> None:
    """Return to the usual priorities. The kernel slows and kills Ray's workers, and what they start, before others.

    This applies to the calling thread, and to threads and processes that it starts afterwards.
    """
    try:
        os.setpriority(os.PRIO_PROCESS, 0, 0)
        Path("/proc/self/oom_score_adj").write_text("0")
    except OSError:
        print(  # noqa: T201 - logging may not be set up yet
            "logitport: this user may not raise the priority of processes that Ray has started: set "
            "RAY_worker_niceness=0 and RAY_worker_oom_score_adjustment=0 for `ray start`",
            file=sys.stderr,
        )


def main() -> None:
    """Serve until SIGTERM, or until the parent ends."""
    from logitport_server.processes import supervised_server

    leave_background()
    supervised_server.main()
