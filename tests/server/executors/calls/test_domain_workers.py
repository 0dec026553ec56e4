"""The workers of one trust domain."""

from __future__ import annotations

import threading
from typing import Any, cast

import pytest

from logitport_server.executors.calls.domain_workers import DomainWorkers


class Worker:
    """The part of a worker that `DomainWorkers` uses. Its slots cannot be acquired."""

    keep_seconds = 0.0
    idle_since = 0.0

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.domain_workers: object = None

    def has_requests(self) -> bool:
        return True

    def reserve(self, source: object, seconds: float) -> None:
        assert self.lock.acquire(timeout=seconds)

    def acquire_free_slot(self) -> bool:
        raise OSError(24, "Too many open files")


def test_an_error_while_a_slot_is_acquired_releases_the_worker() -> None:
    created: list[Worker] = []

    def create() -> Any:
        created.append(Worker())
        return created[-1]

    workers = DomainWorkers(create)
    with pytest.raises(OSError, match="Too many open files"):
        workers.reserve_for_admission(cast("Any", Worker()), cast("Any", None), 1.0)
    assert [worker.lock.locked() for worker in created] == [False]
