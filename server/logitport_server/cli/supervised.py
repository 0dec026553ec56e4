"""`logitport`, in a process that ends with its parent: python -m logitport_server.cli.supervised PARENT-PID ARGUMENT...

The new process itself requests the signal of its parent's end. Otherwise its parent would run Python code between fork
and exec, which can deadlock if it has threads, as Ray's processes have.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from logitport_server.cli.main import main
from logitport_server.sandbox.linux import die_with_parent


def leave_background() -> None:
    """Return to the usual priorities. The kernel slows and kills Ray's workers, and what they start, before others."""
    try:
        os.setpriority(os.PRIO_PROCESS, 0, 0)
        Path("/proc/self/oom_score_adj").write_text("0")
    except OSError:
        print(  # noqa: T201 - logging is not set up yet
            "logitport: this user may not raise the priority of processes that Ray has started: set "
            "RAY_worker_niceness=0 and RAY_worker_oom_score_adjustment=0 for `ray start`",
            file=sys.stderr,
        )


if __name__ == "__main__":
    parent = int(sys.argv.pop(1))
    # Not SIGTERM: a server that moves its sessions first, or that is stopped, would keep its port from its successor.
    die_with_parent(signal.SIGKILL)
    if os.getppid() != parent:  # it has ended before
        sys.exit(1)
    leave_background()
    main()
