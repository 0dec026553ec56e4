"""The processes of principals: memory, the time to the first step, and how one principal's work concerns another."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from benchmarks.helper import Helper, commands
from benchmarks.measure import ROUNDS, over_rounds
from benchmarks.records import BarLine
from benchmarks.servers import Server, logitport_server
from logitport import Client, Request
from logitport.session import Handle, Session
from logitport_server.access import new_token
from logitport_server.lifecycle import time_slice

_VOCAB = 32_000
_PRINCIPALS = 20
_BUSY_SESSIONS = 62
_HELPERS = 2
_STEPS = 400
# The server of one process that ran all sessions took 221 MB with one session.
_MB_OF_ONE_PROCESS = 221.0


def principals(_: Server, __: Client) -> Iterator[BarLine]:
    """Principals with tokens of their own, at a server of their own."""
    with _server(_PRINCIPALS) as (server, tokens):
        yield from _memory(server, tokens)
    with _server(ROUNDS) as (server, tokens):
        yield from _first_sessions(server, tokens)
    with _server(2) as (server, tokens):
        yield from _beside_a_busy_one(server, *tokens)
    with _server(1 + ROUNDS) as (server, tokens):
        yield from _beside_killed_ones(server, *tokens)


def _first_sessions(server: Server, tokens: list[str]) -> Iterator[BarLine]:
    """The time from `session` to the end of its first step, in a process that is forked for it."""
    seconds = []
    for token in tokens:
        with Client(server.target, token=token) as client:
            client.processors()  # connects
            began = time.perf_counter()
            with client.session(vocab_size=_VOCAB) as session:
                handles = _add(session, 1)
                _step(session, handles, 0)
                seconds.append(time.perf_counter() - began)
    yield BarLine("first session of a principal, with its first step", over_rounds(np.array(seconds) * 1e3), 30.0, "ms")


def _memory(server: Server, tokens: list[str]) -> Iterator[BarLine]:
    with Client(server.target, token=tokens[0]) as client, client.session(vocab_size=_VOCAB) as session:
        _step(session, _add(session, 1), 0)
        one = np.array([server.resident_bytes / 1e6])
    yield BarLine("memory of a server, one session", over_rounds(one), _MB_OF_ONE_PROCESS + 20, "MB")
    before = server.resident_bytes
    open_: list[Client | Session] = []
    for token in tokens:
        client = Client(server.target, token=token)
        session = client.session(vocab_size=_VOCAB)
        open_ += [session, client]
        handles = _add(session, 64)
        for step in range(1000):
            _step(session, handles, step)
    each = np.array([(server.resident_bytes - before) / 1e6 / len(tokens)])
    for one_of in open_:
        one_of.close()
    yield BarLine(
        f"memory of each of {_PRINCIPALS} principals, after 1000 steps of 64 rows", over_rounds(each), 20, "MB"
    )


def _beside_a_busy_one(server: Server, innocent: str, busy: str) -> Iterator[BarLine]:
    """Steps of 8 rows beside compiled sessions of another principal, which step without a pause."""
    helpers = [Helper(_step_for_ever, server.target, busy, _BUSY_SESSIONS // _HELPERS) for _ in range(_HELPERS)]
    echo = Helper(_echo_for_ever)
    ratios, longest, floors = [], [], []

    def pass_on(number: int) -> None:
        """Wait for an echo: as long as the kernel alone lets a small message of another scheduling group wait."""
        echo.call(number=number)

    try:
        for helper in helpers:
            helper.receive(120.0)
            helper.signal(signal.SIGSTOP)
        with Client(server.target, token=innocent) as client, client.session(vocab_size=_VOCAB) as session:
            step = partial(_step, session, _add(session, 8))
            for _ in range(ROUNDS):
                alone, echo_alone = _times(step), _times(pass_on)
                for helper in helpers:
                    helper.signal(signal.SIGCONT)
                beside, echo_beside = _times(step), _times(pass_on)
                for helper in helpers:
                    helper.signal(signal.SIGSTOP)
                ratios.append(np.quantile(beside, 0.99) / np.quantile(alone, 0.99))
                longest.append((beside.max() - np.median(alone)) * 1e3)
                floors.append(np.quantile(echo_beside, 0.99) / np.quantile(echo_alone, 0.99))
    finally:
        for helper in (*helpers, echo):
            helper.signal(signal.SIGKILL)
    case = f"a step of 8 rows each 5 ms beside {_BUSY_SESSIONS} sessions of another principal"
    yield BarLine(f"{case}: p99 ÷ alone", over_rounds(np.array(ratios)), 3.0)
    floor = "an echo between two processes, beside the same sessions"
    yield BarLine(f"{floor}: p99 ÷ alone", over_rounds(np.array(floors)), None)
    yield BarLine(f"{case}: the longest, without the step", over_rounds(np.array(longest)), 50.0, "ms")


def _beside_killed_ones(server: Server, innocent: str, *killed: str) -> Iterator[BarLine]:
    """The longest step of a principal while the process of another is killed."""
    longest = []
    with Client(server.target, token=innocent) as client, client.session(vocab_size=_VOCAB) as session:
        step = partial(_step, session, _add(session, 8))
        for token in killed:
            first = set(server.pids)
            with Client(server.target, token=token) as other, other.session(vocab_size=_VOCAB) as ended:
                _step(ended, _add(ended, 8), 0)
                (process,) = set(server.pids) - first
                timer = threading.Timer(0.5, os.kill, (process, signal.SIGKILL))
                timer.start()
                longest.append(_times(step).max() * 1e3)
                timer.join()
    name = "the longest step while another principal's process is killed"
    yield BarLine(name, over_rounds(np.array(longest)), 20.0, "ms")


def _times(run: Callable[[int], object]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Seconds of each step, or echo; the argument is its number."""
    seconds = []
    for number in range(_STEPS):
        began = time.perf_counter()
        run(number)
        seconds.append(time.perf_counter() - began)
        time.sleep(0.005)
    return np.array(seconds)


def _echo_for_ever(pipe: Connection) -> None:
    """In a helper: return what is received, with the time slice of a server."""
    time_slice.shorten()
    for command in commands(pipe):
        pipe.send(command)


def _step_for_ever(pipe: Connection, target: str, token: str, sessions: int) -> None:
    """In a helper: step with many sessions at the same time, without a pause."""
    with Client(target, token=token) as client:
        opened = [client.session(vocab_size=_VOCAB) for _ in range(sessions)]
        handles = [_add(session, 8) for session in opened]
        pipe.send("ready")

        def run(session: Session, of_session: list[Handle]) -> None:
            step = 0
            while True:
                _step(session, of_session, step := step + 1)

        threads = [threading.Thread(target=run, args=each, daemon=True) for each in zip(opened, handles, strict=True)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def _add(session: Session, rows: int) -> list[Handle]:
    processors = [("no_repeat_ngram", {"ngram_size": 3}), ("logit_bias", {"logit_bias": {"5": 1.0}})]
    return [session.add(Request(list(range(500)), processors=processors)) for _ in range(rows)]


def _step(session: Session, handles: list[Handle], step: int) -> None:
    session.step({handle: [(7 * step + row) % _VOCAB] for row, handle in enumerate(handles)}).edits()


@contextmanager
def _server(count: int) -> Iterator[tuple[Server, list[str]]]:
    """Run a server with so many principals. Yields it and their tokens."""
    tokens, grants = zip(*(new_token(f"principal-{number}", ["apply"]) for number in range(count)), strict=True)
    with TemporaryDirectory() as folder:
        file = Path(folder, "tokens")
        file.write_text("\n".join(grant.line for grant in grants))
        with logitport_server("--device", "cpu", "--tokens", str(file)) as server:
            yield server, list(tokens)
