"""The time slice of the front door and of principals' processes: short, so that a small step waits little.

A process that wakes up for a small step waits until the slice of what runs has ended, although its group has computed
less. Measured on 2 cores with Linux 6.18 and autogroups, where the kernel's slice is 1.4 ms: a process answers a
message each 5 ms, beside 8 processes of another group that compute without end. Times until the answer in ms, p50 /
p99, of three runs each:

| slice of the answering process | the answer computes for 0 ms | 0.05 ms | 3 ms |
|---|---|---|---|
| the kernel's | 0.07 / 3.3 to 4.0 | 0.12 / 2.8 to 4.1 | 3.2 / 11 to 51 |
| 0.1 ms | 0.06 / 0.1 to 0.2 | 0.12 / 0.3 to 2.2 | 3.1 / 12 to 15 |

The machine had other load. Slices of 0.1 ms for the other group make no difference. Beside 62 sessions that wake up all
the time, instead of processes that compute, no gain could be measured: `benchmarks/principals.py`.
"""

from __future__ import annotations

from contextlib import suppress

from logitport_sandbox import linux

_NANOSECONDS = 100_000  # the shortest that the kernel accepts


def shorten() -> None:
    """Shorten the time slice of this process and of those that it starts. Workers return to the kernel's."""
    with suppress(OSError):  # an architecture without it: as before Linux 6.12
        linux.set_time_slice(_NANOSECONDS)
