"""The processes of one principal share the limit of its histories and states, and return the memory afterwards."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from logitport import Client, Request
from logitport.errors import LimitExceeded
from logitport_runner.in_thread import ThreadServer
from logitport_server.front_door import processes
from tests.processes import principal_processes, private_bytes
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from logitport.session import Handle, Session
    from tests.conftest import RunningServer

LIMIT = 16 << 20
# Of one history, which is charged with 6 MB.
NUM_IDS = 1_000_000


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ThreadServer]:
    """A server for which each process with a session is busy, so that the next session gets a further one."""
    monkeypatch.setattr(processes, "_BUSY_PART", -1.0)
    monkeypatch.setattr(processes, "_MEASURE_SECONDS", 0.05)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2})
    running = ThreadServer({"max_principal_memory": str(LIMIT)})
    yield running
    running.stop()


def open_in_further_process(server: ThreadServer, client: Client) -> Session:
    running: Any = server._server._processes
    wait_until(lambda: all(process.is_busy for process in running))
    number = len(running)
    session = client.session(vocab_size=64, dtype="float32", transport="grpc", reconnect_seconds=0)
    assert len(running) == number + 1
    return session


def add(session: Session, num_ids: int = NUM_IDS) -> Handle:
    return session.add(Request([1] * num_ids))


def refuses(session: Session) -> bool:
    try:
        session.remove(add(session))
    except LimitExceeded as error:
        assert f"more than {LIMIT} bytes, the limit of a principal" in error.message  # noqa: PT017 - the other result
        return True
    return False


def test_processes_of_a_principal_share_one_limit(server: ThreadServer) -> None:
    with Client(server.target) as client:
        first = open_in_further_process(server, client)
        held = [add(first), add(first)]
        second = open_in_further_process(server, client)
        add(second, 1000)
        assert refuses(first)
        assert refuses(second)
        third = open_in_further_process(server, client)
        assert refuses(third)
        first.remove(held.pop())
        wait_until(lambda: not refuses(third))
        kept = add(third)
        wait_until(lambda: refuses(first))
        assert refuses(second)
        third.remove(kept)
        for session in (first, second, third):
            session.close()


def test_the_share_of_a_process_that_ends_is_free(server: ThreadServer) -> None:
    with Client(server.target) as client:
        first = open_in_further_process(server, client)
        add(first)
        add(first)
        second = open_in_further_process(server, client)
        assert refuses(second)
        running: Any = server._server._processes
        killed = next(iter(running))
        server._loop.call_soon_threadsafe(killed.kill)
        wait_until(lambda: not refuses(second))
        second.close()


VOCAB = 50_000
CHAIN = [("no_repeat_ngram", {"ngram_size": 3}), ("frequency_penalty", {"frequency_penalty": 1.0})] * 4
BIASES = ("logit_bias", {"logit_bias": {str(token_id): 0.5 for token_id in range(VOCAB)}})
# The process has imported and cached what chains need, once.
MAX_GROWTH_BYTES = 32 << 20
MIN_USED_BYTES = 64 << 20


@pytest.mark.parametrize("transport", ["grpc", "local"])
def test_memory_of_long_chains_and_histories_is_returned(
    start_server: Callable[..., RunningServer], transport: str
) -> None:
    running = start_server("--max-principal-memory", "1GiB")
    history = np.random.default_rng(1).integers(0, VOCAB, 200_000, dtype=np.int32)
    with Client(running.target) as client:
        with client.session(vocab_size=VOCAB, dtype="float32"):
            (process,) = principal_processes(running.process.pid)
            idle = private_bytes(process)
        with client.session(vocab_size=VOCAB, dtype="float32", transport=transport) as session:  # type: ignore[arg-type]
            handles = [session.add(Request(history, processors=CHAIN)) for _ in range(4)]
            handles += [session.add(Request([1], processors=[BIASES])) for _ in range(4)]
            assert private_bytes(process) > idle + MIN_USED_BYTES
            for handle in handles:
                session.remove(handle)
        wait_until(
            lambda: private_bytes(process) < idle + MAX_GROWTH_BYTES,
            lambda: f"{private_bytes(process) >> 20} MiB after the last session, {idle >> 20} MiB before the first",
        )
