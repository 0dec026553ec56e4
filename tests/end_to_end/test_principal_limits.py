"""A principal's process that has no more memory or threads fails its own requests, and no others."""

from __future__ import annotations

import re
import resource
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from logitport import Request
from logitport.errors import LimitExceeded
from tests.end_to_end.test_principal_processes import clients, open_session, processes_of, server, step

if TYPE_CHECKING:
    from logitport import Client
    from tests.conftest import RunningServer

__all__ = ["clients", "server"]

# Of one history. The server's limit is 2^20 ids.
NUM_IDS = 1_000_000


def leave_memory(process_id: int, num_bytes: int) -> None:
    """Let the process allocate this much more."""
    pages = int(Path(f"/proc/{process_id}/statm").read_text().split()[5])
    limit = pages * resource.getpagesize() + num_bytes
    _, hard = resource.prlimit(process_id, resource.RLIMIT_DATA)
    resource.prlimit(process_id, resource.RLIMIT_DATA, (limit, hard))


def allow_all_memory(process_id: int) -> None:
    _, hard = resource.prlimit(process_id, resource.RLIMIT_DATA)
    resource.prlimit(process_id, resource.RLIMIT_DATA, (hard, hard))


def histories(client: Client, transport: str, number: int) -> None:
    """Hold so many long histories in one session."""
    opened, _ = open_session(client, transport, reconnect_seconds=0)
    with opened as session:
        for first in range(number):
            session.add(Request([first % 64] * NUM_IDS, processors=[("logit_bias", {"logit_bias": {"3": 1.0}})]))


@pytest.mark.parametrize("transport", ["local", "grpc"])
def test_a_process_without_memory_fails_its_own_requests(
    server: RunningServer, clients: dict[str, Client], transport: str
) -> None:
    annas, anna = open_session(clients["anna"], transport)
    (first,) = processes_of(server)
    berts, bert = open_session(clients["bert"], transport)
    leave_memory(first, 32 << 20)
    with pytest.raises(LimitExceeded, match="needs more memory than the session's process may have"):
        histories(clients["anna"], transport, 40)
    step(berts, bert)
    step(annas, anna)
    assert first in processes_of(server)
    allow_all_memory(first)
    histories(clients["anna"], transport, 4)
    assert (annas.reconnects, berts.reconnects) == (0, 0)


def test_a_session_for_which_there_is_no_thread(server: RunningServer, clients: dict[str, Client]) -> None:
    annas, anna = open_session(clients["anna"], "grpc")
    (first,) = processes_of(server)
    leave_memory(first, 4 << 20)  # less than the stack of a thread
    # What else the process allocates meanwhile may take the rest.
    with pytest.raises(LimitExceeded, match=r"needs a thread|needs more memory|out of memory"):
        open_session(clients["anna"], "grpc", reconnect_seconds=0)
    step(annas, anna)
    allow_all_memory(first)
    step(*open_session(clients["anna"], "grpc"))
    assert processes_of(server) == [first]


def test_the_log_says_how_the_cpu_is_divided(server: RunningServer) -> None:
    log = server.log.read_text()
    assert len(re.findall("the kernel divides the CPU among principals|does not divide the CPU among", log)) == 1
