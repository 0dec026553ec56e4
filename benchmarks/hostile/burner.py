"""A process that uses a given number of cores: `python -m benchmarks.hostile.burner`. The floor of every attack.

Its threads compute hashes, which releases Python's lock, at normal niceness. The kernel divides the machine's cores
between them and all other threads. So the floor is the effect of the same CPU time without a shared server.
"""

from __future__ import annotations

import hashlib
import math
import os
import threading
import time

from benchmarks.hostile.helper import commands, reply

_BLOCK = bytes(1 << 17)
_PAUSE_SECONDS = 0.001


def burn(share: float, stopped: threading.Event) -> None:
    """Use this share of one core, as the thread's own clock counts it, until `stopped`."""
    began, spent = time.monotonic(), time.thread_time()
    while not stopped.is_set():
        if time.thread_time() - spent < share * (time.monotonic() - began):
            hashlib.sha256(_BLOCK)
        else:
            time.sleep(_PAUSE_SECONDS)


def main() -> None:
    available = len(os.sched_getaffinity(0))
    threads: list[threading.Thread] = []
    stopped = threading.Event()
    for command in commands():
        if command["do"] == "start":
            stopped = threading.Event()
            cores = min(float(command["cores"]), available)
            number = max(1, math.ceil(cores))
            threads = [
                threading.Thread(target=burn, args=(cores / number, stopped), daemon=True) for _ in range(number)
            ]
            for thread in threads:
                thread.start()
        else:
            stopped.set()
            for thread in threads:
                thread.join()
        reply()


if __name__ == "__main__":
    main()
