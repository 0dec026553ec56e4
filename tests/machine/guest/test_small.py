"""One core, 512 MiB, a read-only root, a full disk, and a clock that jumps."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from logitport import LogitportError, Request
from tests.machine.guest.service import FLAG, PATIENCE, DenyOne

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from logitport import Client
    from logitport.session import Session
    from tests.machine.guest.service import Service

VOCAB = 1000


def step(session: Session, handle: Any) -> list[int]:
    """The ids that are denied in a step."""
    logits = np.zeros((1, VOCAB), np.float32)
    session.step({handle: []}).apply(logits)
    return np.flatnonzero(np.isneginf(logits)).tolist()


def fill(path: Path) -> None:
    """Write until the disk is full."""
    with path.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(1 << 16))


def register_many(client: Client) -> None:
    """Register classes. The first ones may find room in the last page of the database."""
    for number in range(200):
        shipped = type(f"Full{number}", (DenyOne,), {"__module__": DenyOne.__module__})
        client.register(shipped, name=f"full/{number}")


@pytest.fixture
def session(service: Service) -> Iterator[Session]:
    service.start(variables=FLAG)
    with service.client() as client, client.session(vocab_size=VOCAB) as opened:
        yield opened


def test_the_root_is_read_only_and_the_machine_is_small() -> None:
    assert os.cpu_count() == 1
    assert os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") < 512 << 20
    with pytest.raises(OSError, match="Read-only"):
        Path("/file").touch()


def test_a_shipped_class_runs(
    service: Service, session: Session, record_property: Callable[[str, object], None]
) -> None:
    assert step(session, session.add(Request([1], processors=[(DenyOne, {})]))) == [5]
    record_property("memory_mb", round(int((service.cgroup / "memory.current").read_text()) / 1e6))
    assert "by a cgroup for each process" in service.log()


def test_a_full_disk_refuses_a_registration_and_nothing_else(service: Service, session: Session) -> None:
    built_in = session.add(Request([1], processors=[("disallowed_tokens", {"token_ids": [7]})]))
    filler = Path("/var/filler")
    try:
        with pytest.raises(OSError, match="No space"):
            fill(filler)
        with service.client() as client, pytest.raises(LogitportError):
            register_many(client)
        assert step(session, built_in) == [7]
        assert step(session, session.add(Request([1], processors=[(DenyOne, {})]))) == [5]
    finally:
        filler.unlink(missing_ok=True)
    with service.client() as client:
        client.register(DenyOne, name="after/full")
        assert client.processor("after/full")
    assert service.show("NRestarts") == "0"


@pytest.mark.parametrize("jump", ["+2 days", "-4 days"])
def test_a_clock_that_jumps_ends_nothing(service: Service, session: Session, jump: str) -> None:
    """While steps run. The other direction follows, so that the clock is right again."""
    handle = session.add(Request([1], processors=[(DenyOne, {}), ("disallowed_tokens", {"token_ids": [7]})]))
    assert step(session, handle) == [5, 7]
    done, longest = threading.Event(), [0.0]
    errors: list[LogitportError] = []

    def steps() -> None:
        while not done.is_set():
            began = time.monotonic()
            try:
                assert step(session, handle) == [5, 7]
            except LogitportError as error:
                errors.append(error)
            longest[0] = max(longest[0], time.monotonic() - began)

    thread = threading.Thread(target=steps)
    thread.start()
    before = time.time()
    try:
        time.sleep(0.5)
        subprocess.run(["date", "-s", jump], check=True, capture_output=True)
        assert abs(time.time() - before) > 86_400
        time.sleep(2.0 * PATIENCE)
    finally:
        done.set()
        thread.join()
        subprocess.run(["date", "-s", f"@{before + 0.5 + 2 * PATIENCE}"], check=True, capture_output=True)
    assert not errors
    assert longest[0] < 2.0 * PATIENCE
    assert step(session, session.add(Request([1], processors=[(DenyOne, {})]))) == [5]
    with service.client("other") as other, other.session(vocab_size=VOCAB) as another:
        assert step(another, another.add(Request([1], processors=[(DenyOne, {})]))) == [5]
    assert service.is_ready()
    assert service.show("NRestarts") == "0"
