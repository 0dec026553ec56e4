"""Snapshots of quarantines for processes that cannot be sent one."""

from __future__ import annotations

from typing import Any

import pytest

from logitport_server.front_door.worker_service.quarantine_snapshots import QuarantineSnapshots
from logitport_server.registry.quarantine import Quarantine
from logitport_session.trust.principals import Party, TrustDomain
from tests.event_loops import on_loop


class PlayedProcess:
    def __init__(self, principal: str) -> None:
        self.principal, self.process_id = principal, 1
        self.is_running = True
        self.error: Exception | None = None
        self.posted: list[Any] = []

    def post(self, message: Any) -> None:
        if self.error is not None:
            raise self.error
        if self.is_running:
            self.posted.append(message)


def digests(process: PlayedProcess) -> list[list[str]]:
    return [[one.digest for one in snapshot.own] for snapshot in process.posted]


@pytest.mark.parametrize("raises", [True, False])
@on_loop
async def test_a_snapshot_that_was_not_sent_is_sent_again(raises: bool) -> None:
    quarantine = Quarantine(1, 1.0)
    snapshots = QuarantineSnapshots(quarantine)
    failing, other = processes = PlayedProcess("a"), PlayedProcess("a")
    for process in processes:
        snapshots.add(process)  # type: ignore[arg-type]
    failing.is_running = raises
    failing.error = OSError("no descriptor is free") if raises else None
    domain = TrustDomain("a", Party("a"), "digest")
    quarantine.adopt(domain, "digest", "adopted")
    assert (digests(failing), digests(other)) == ([], [["digest"]])
    failing.is_running, failing.error = True, None
    quarantine.adopt(TrustDomain("b", Party("b"), "digest"), "another digest", "adopted")
    assert (digests(failing), digests(other)) == ([["digest"]], [["digest"]])
