"""Changes the registry in processes that are killed: `python -m tests.server.registry.killed_servers BASE`.

For each change and each write of SQLite, it copies the store BASE to a new folder next to it, and makes the change
there in a process that kills itself with SIGKILL at that write.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from pathlib import Path

from tests.server.registry.stores.faulty_disk import FaultyDisk, faults
from tests.server.registry.test_store_faults import CHANGES, open_registry


def main() -> None:
    base = Path(sys.argv[1])
    for name, change in CHANGES.items():
        for at in faults():
            folder = base.with_name(f"{name} {at}")
            shutil.copytree(base, folder)
            child = os.fork()
            if child == 0:
                opened, _ = open_registry(folder)
                with FaultyDisk(at, "killed").mounted():
                    change(opened)
                os._exit(0)
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            assert status in (0, -signal.SIGKILL), status
            if status == 0:
                break


if __name__ == "__main__":
    main()
