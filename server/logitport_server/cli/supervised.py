"""`logitport`, in a process that ends with its parent: python -m logitport_server.cli.supervised PARENT-PID ARGUMENT...

The new process itself requests the signal of its parent's end. Otherwise its parent would run Python code between fork
and exec, which can deadlock if it has threads, as Ray's processes have.
"""

from __future__ import annotations

import os
import signal
import sys

from logitport_server.cli.main import main
from logitport_server.fleet.priority import leave_background
from logitport_server.sandbox.linux import die_with_parent

if __name__ == "__main__":
    parent = int(sys.argv.pop(1))
    # Not SIGTERM: a server that moves its sessions first, or that is stopped, would keep its port from its successor.
    die_with_parent(signal.SIGKILL)
    if os.getppid() != parent:  # it has ended before
        sys.exit(1)
    leave_background()
    main()
