"""Which owners of code may hold the GPU, as the front door decides."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from logitport.system.bounded import BoundedTable
from logitport_server.principal_process.worker_messages import FindGpuGrant, GpuGrant

if TYPE_CHECKING:
    from logitport_server.principal_process.link import Link

# Between two questions about one owner.
_KEPT_SECONDS = 1.0
_MAX_OWNERS = 1024


class FoundGrants:
    """Returns whether the owner of a name has the scope `cuda`. Asks the front door at most once in a second.

    It waits for the front door, so the thread of `Link.run` must not call it.
    """

    def __init__(self, link: Link) -> None:
        self._link = link
        self._lock = threading.Lock()
        # By owner: when it was found, in time.monotonic() seconds, and the answer.
        self._found: BoundedTable[str, tuple[float, bool]] = BoundedTable(_MAX_OWNERS)

    def __call__(self, owner: str) -> bool:
        found = self._found.get(owner)
        if found is None or time.monotonic() - found[0] > _KEPT_SECONDS:
            answer = self._link.call(FindGpuGrant(owner=owner)).message
            found = time.monotonic(), isinstance(answer, GpuGrant) and answer.granted
            with self._lock:
                self._found[owner] = found
        return found[1]
