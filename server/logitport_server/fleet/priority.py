"""The priority of a fleet's processes among those of their node."""

from __future__ import annotations

import os
import sys
from pathlib import Path


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
