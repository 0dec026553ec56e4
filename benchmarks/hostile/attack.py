"""One attacker, a process: `python -m benchmarks.hostile.attack NAME`.

The first command is the target. The reply follows when everything is open; then the attack goes on until the input
ends. `count` replies with the attacker's counts.
"""

from __future__ import annotations

import os
import sys
import threading
import time

import torch

from benchmarks.hostile.attackers import ATTACKERS, Attacker, Target
from benchmarks.hostile.helper import commands, reply

_PAUSE_SECONDS = 0.01


def repeat(attacker: Attacker, thread: int) -> None:
    """Run rounds without end. Errors are counted, and the next round follows."""
    while True:
        try:
            attacker.attack(thread)
            attacker.counts["rounds"] += 1
        except Exception as error:  # noqa: BLE001 - the attack continues after any error
            attacker.counts[type(error).__name__] += 1
            time.sleep(_PAUSE_SECONDS)


def main() -> None:
    torch.set_num_threads(1)
    received = commands()
    attacker = ATTACKERS[sys.argv[1]](Target(**next(received)))
    attacker.prepare()
    for thread in range(attacker.threads):
        threading.Thread(target=repeat, args=(attacker, thread), daemon=True).start()
    reply()
    for _ in received:
        reply(**attacker.counts)
    os._exit(0)  # threads may be in calls that take long


if __name__ == "__main__":
    main()
