"""Sessions under faults: `python -m tests.faults --sessions 2000 --seed 1`.

Servers are killed, stopped and continued at random moments, while short sessions run on them. A session must not end
with an error, and its tokens must equal those of the same session on a server without faults. With `--together` each
session may use all servers.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from random import Random
from typing import Any, Literal

import numpy as np

from logitport import Client, Request, ServerUnavailable
from logitport.session import frame_connection
from tests.faults.servers import FaultyServer, context

VOCAB = 48
_RECONNECT_SECONDS = 90.0
_TIMEOUT = 30.0
# The client's margin, shorter than most stops, so that stopped servers are noticed.
_MARGIN_SECONDS = 1.0

CHAINS: list[list[tuple[str, dict[str, Any]]]] = [
    [("no_repeat_ngram", {"ngram_size": 2, "window_size": 200})],
    [("disallowed_tokens", {"token_ids": [1, 2, 3]}), ("no_repeat_ngram", {"ngram_size": 3})],
    [("thinking_budget", {"thinking_budget": 4, "thinking_start_ids": [7], "thinking_end_ids": [8], "newline_id": 5})],
]


def model(histories: list[list[int]]) -> np.ndarray[Any, Any]:
    """Return logits that depend on the last ids of each history."""
    return np.stack([np.random.default_rng(ids[-2:]).normal(size=VOCAB).astype(np.float32) for ids in histories])


def generate(client: Client, seed: int, transport: Literal["auto", "grpc"], counts: Counter[str]) -> list[list[int]]:
    """Run one session, and return its tokens."""
    random = Random(seed)
    session = _with_retries(
        lambda: client.session(vocab_size=VOCAB, transport=transport, reconnect_seconds=_RECONNECT_SECONDS)
    )
    done, histories, new_ids = [], {}, {}
    with session:
        for _ in range(random.randint(4, 20)):
            if not histories or random.random() < 0.3:
                prompt = [random.randrange(VOCAB) for _ in range(random.randint(1, 20))]
                handle = session.add(Request(prompt, processors=random.choice(CHAINS)))
                histories[handle], new_ids[handle] = prompt, []
            pending = session.step(new_ids)
            logits = model(list(histories.values()))
            time.sleep(random.random() * 0.15)
            result = pending.apply(logits, check=False)
            assert not result.failures, result.failures
            new_ids = {handle: [int(row.argmax())] for handle, row in zip(histories, logits, strict=True)}
            for handle, ids in new_ids.items():
                histories[handle] += ids
            if len(histories) > 2:
                handle = next(iter(histories))
                session.remove(handle)
                done.append(histories.pop(handle))
                del new_ids[handle]
        counts["reconnects"] += session.reconnects
        counts["sessions with a reconnect"] += session.reconnects > 0
    return [*done, *histories.values()]


def _with_retries(call: Any) -> Any:
    """Retry the call while there is no server: a session waits for one only after it was connected."""
    deadline = time.monotonic() + _RECONNECT_SECONDS
    while True:
        try:
            return call()
        except ServerUnavailable as error:
            if error.was_connected or time.monotonic() > deadline:
                raise
            time.sleep(0.05)


@dataclass
class Report:
    """Results of the sessions.

    Attributes:
        counts: of sessions, reconnects and faults.
        lost: the sessions that ended with an error or with wrong tokens.
    """

    counts: Counter[str] = field(default_factory=Counter)
    lost: list[str] = field(default_factory=list)


def run(sessions: int, seed: int, servers: int, threads: int, *, together: bool = False) -> Report:
    """Run the sessions, each on one server or on all of them, and return the report."""
    frame_connection._MARGIN_SECONDS = _MARGIN_SECONDS
    processes, report, lock = context(), Report(), threading.Lock()
    with tempfile.TemporaryDirectory() as folder:
        log = os.path.join(folder, "log")
        calm = FaultyServer(processes, Random(seed), log, faults=False)
        faulty = [FaultyServer(processes, Random(f"{seed} {at}"), log, faults=True) for at in range(servers)]

        def one(number: int) -> None:
            own = Random(f"{seed} {number}").randrange(1 << 30)
            server, transport = faulty[number % servers], ("auto", "grpc")[own % 2]
            counts: Counter[str] = Counter()
            began = time.monotonic()
            try:
                with Client(calm.target, timeout=_TIMEOUT) as client:
                    expected = generate(client, own, transport, Counter())  # type: ignore[arg-type]
                began = time.monotonic()
                targets = [one.target for one in (faulty if together else [server])]
                with Client(targets, timeout=_TIMEOUT) as client:
                    tokens = generate(client, own, transport, counts)  # type: ignore[arg-type]
                assert tokens == expected, "its tokens differ from those of an undisturbed run"
            except Exception:  # noqa: BLE001 - reported
                now = time.monotonic()
                events = [(f"{at - began:+.2f} s", name) for at, name in server.events if began - 10 < at < now]
                lost = f"session {number}, {transport}, after {now - began:.1f} s:\n{traceback.format_exc()}{events}"
                report.lost.append(lost)
                print(f"lost: {lost}", flush=True)
            counts["sessions"] += 1
            with lock:
                report.counts += counts
                if report.counts["sessions"] % 100 == 0:
                    print(f"{report.counts['sessions']} sessions, {len(report.lost)} lost", flush=True)

        try:
            with ThreadPoolExecutor(threads) as pool:
                list(pool.map(one, range(sessions)))
        finally:
            for server in (calm, *faulty):
                server.close()
                report.counts += server.counts
    return report


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--sessions", type=int, default=200)
    parser.add_argument("--servers", type=int, default=3)
    parser.add_argument("--threads", type=int, default=24)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 10**6)
    parser.add_argument("--together", action="store_true")
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    report = run(options.sessions, options.seed, options.servers, options.threads, together=options.together)
    print(json.dumps({**report.counts, "lost": len(report.lost)}, indent=2))
    return 1 if report.lost else 0


if __name__ == "__main__":
    sys.exit(main())
