"""Each principal has a process: what ends one, or uses up its memory or threads, leaves the others as they are."""

from __future__ import annotations

import os
import re
import resource
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

from logitport import Client, Request
from logitport.errors import LimitExceeded, LogitportError
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from logitport.session import Handle, Session
    from tests.conftest import RunningServer

VOCAB = 64
TOKENS = ("anna", "bert")


def children(process_id: int) -> list[int]:
    """The children of all threads of a process."""
    files = Path(f"/proc/{process_id}/task").glob("*/children")
    return [int(text) for file in files for text in file.read_text().split()]


def zygote_of(server: RunningServer) -> int:
    """The process that forks the processes of principals."""
    (found,) = (
        child
        for child in children(server.process.pid)
        if b"logitport_server.principal_process" in Path(f"/proc/{child}/cmdline").read_bytes()
    )
    return found


def processes_of(server: RunningServer) -> list[int]:
    """The processes of principals, the oldest first."""
    return sorted(children(zygote_of(server)))


def trials_of(process: int) -> list[int]:
    """The processes in which a process tries grammars, once they have read them."""
    limits = {child: Path(f"/proc/{child}/limits").read_text() for child in children(process)}
    return [child for child, text in limits.items() if re.search(r"Max cpu time +\d", text)]


@pytest.fixture
def server(start_server: Callable[..., RunningServer], tmp_path: Path) -> RunningServer:
    from logitport_server.access import new_token

    lines = []
    for name in TOKENS:
        token, grant = new_token(name, ["apply", "register"])
        (tmp_path / name).write_text(token)
        lines.append(grant.line)
    (tmp_path / "tokens").write_text("\n".join(lines))
    return start_server("--tokens", str(tmp_path / "tokens"))


@pytest.fixture
def clients(server: RunningServer, tmp_path: Path) -> dict[str, Client]:
    return {name: Client(server.target, token=(tmp_path / name).read_text()) for name in TOKENS}


def open_session(client: Client, transport: str, **options: float) -> tuple[Session, Handle]:
    session = client.session(vocab_size=VOCAB, dtype="float32", transport=transport, **options)  # type: ignore[arg-type]
    return session, session.add(Request([1, 2], processors=[("logit_bias", {"logit_bias": {"3": 1.0}})]))


def step(session: Session, handle: Handle) -> None:
    logits = torch.zeros(1, VOCAB)
    session.step({handle: [5]}).apply(logits)
    assert logits[0, 3] == 1.0
    assert logits.sum() == 1.0


@pytest.mark.parametrize("transport", ["local", "grpc"])
def test_a_killed_process_concerns_its_principal_only(
    server: RunningServer, clients: dict[str, Client], transport: str
) -> None:
    annas, anna = open_session(clients["anna"], transport)
    (first,) = processes_of(server)
    berts, bert = open_session(clients["bert"], transport)
    (second,) = set(processes_of(server)) - {first}
    step(annas, anna)
    step(berts, bert)
    assert [Path(f"/proc/{each}/comm").read_text() for each in (first, second)] == ["anna\n", "bert\n"]
    os.kill(second, signal.SIGKILL)
    for _ in range(100):
        step(annas, anna)
    step(berts, bert)  # restored in a new process
    assert (annas.reconnects, berts.reconnects) == (0, 1)
    assert first in processes_of(server)
    assert second not in processes_of(server)
    wait_until(lambda: "was killed by SIGKILL" in server.log.read_text())


def test_a_principal_whose_processes_end_is_refused_for_a_while(
    server: RunningServer, clients: dict[str, Client]
) -> None:
    for number in range(1, 3):
        session = clients["anna"].session(vocab_size=VOCAB, dtype="float32")
        (process,) = processes_of(server)
        os.kill(process, signal.SIGKILL)
        wait_until(lambda number=number: server.log.read_text().count("was killed by SIGKILL") == number)  # type: ignore[misc]
        session.close()
    with pytest.raises(LimitExceeded, match="has ended 2 times within 60 s"):
        clients["anna"].session(vocab_size=VOCAB, dtype="float32")
    step(*open_session(clients["bert"], "grpc"))
    time.sleep(1.0)  # the first refusal
    step(*open_session(clients["anna"], "grpc"))


def test_the_zygote_is_launched_again_and_sessions_go_on(server: RunningServer, clients: dict[str, Client]) -> None:
    session, handle = open_session(clients["anna"], "local")
    zygote = zygote_of(server)
    os.kill(zygote, signal.SIGKILL)
    for _ in range(100):
        step(session, handle)
    wait_until(lambda: "is started again" in server.log.read_text())
    other, others = open_session(clients["bert"], "local")  # waits until it runs
    step(other, others)
    assert zygote_of(server) != zygote
    assert session.reconnects == 0


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_no_process_outlives_the_server(
    server: RunningServer, clients: dict[str, Client], number: signal.Signals
) -> None:
    for client in clients.values():
        session, handle = open_session(client, "local", reconnect_seconds=0)
        step(session, handle)
    running = [zygote_of(server), *processes_of(server)]
    assert len(running) == 3
    os.kill(server.process.pid, number)
    server.process.wait()
    wait_until(lambda: not any(Path(f"/proc/{each}").exists() for each in running))


def test_the_trial_of_a_grammar_ends_with_the_process(server: RunningServer, clients: dict[str, Client]) -> None:
    pytest.importorskip("llguidance")
    schema = {"type": "object", "properties": {f"p{n}": {"type": "string", "pattern": "a{1,900}"} for n in range(99)}}
    session = clients["anna"].session(vocab_size=VOCAB, dtype="float32", reconnect_seconds=0)
    (process,) = processes_of(server)
    request = Request([1], processors=[("grammar", {"json_schema": schema})])
    with ThreadPoolExecutor(1) as pool:
        adding = pool.submit(session.add, request)
        wait_until(lambda: trials_of(process) or adding.done())
        (trial,) = trials_of(process)
        os.kill(trial, signal.SIGSTOP)  # it does not end by itself
        assert os.getsid(trial) == process  # the kernel counts its time for this principal
        os.kill(process, signal.SIGKILL)
        wait_until(lambda: not Path(f"/proc/{trial}").exists())
        with pytest.raises(LogitportError):
            adding.result()
    session.close()


def test_processes_have_no_secret(server: RunningServer, clients: dict[str, Client], tmp_path: Path) -> None:
    open_session(clients["anna"], "local")
    for process in (zygote_of(server), *processes_of(server)):
        secrets = [(tmp_path / name).read_text().encode() for name in TOKENS] + [str(tmp_path / "tokens").encode()]
        environment = Path(f"/proc/{process}/environ").read_bytes()
        assert not any(secret in environment for secret in secrets)
        opened = [os.readlink(file) for file in Path(f"/proc/{process}/fd").iterdir() if file.is_symlink()]
        assert not any("tokens" in file for file in opened)


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
    # Other allocations of the process may take the rest meanwhile.
    with pytest.raises(LimitExceeded, match=r"needs a thread|needs more memory|out of memory"):
        open_session(clients["anna"], "grpc", reconnect_seconds=0)
    step(annas, anna)
    allow_all_memory(first)
    step(*open_session(clients["anna"], "grpc"))
    assert processes_of(server) == [first]


def test_the_log_says_how_the_cpu_is_divided(server: RunningServer) -> None:
    log = server.log.read_text()
    assert len(re.findall("the kernel divides the CPU among principals|does not divide the CPU among", log)) == 1
