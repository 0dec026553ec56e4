"""Whether a call of the compiled core releases the interpreter's lock."""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


def run_during(calls: Iterable[Callable[[], object]]) -> bool:
    """Whether another thread of Python can run during these calls, which take a millisecond or more.

    Args:
        calls: equal ones, called until the other thread has run, because the system may run it late.
    """
    gate, passed = threading.Lock(), []

    def other() -> None:
        with gate:
            passed.append(True)

    interval = sys.getswitchinterval()
    thread = threading.Thread(target=other)
    try:
        with gate:
            thread.start()
            while not thread.is_alive():
                pass
            sys.setswitchinterval(1000)  # a thread keeps the interpreter's lock until it releases it itself
        for call in calls:
            call()
            if passed:
                return True
        return False
    finally:
        sys.setswitchinterval(interval)
        thread.join()
