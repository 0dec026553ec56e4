"""Engines for test_regimes.py, each in a unit of its own: `python load.py hostile|innocent TRANSPORT TOKEN`.

They do the same work as those of benchmarks/principals.py, without torch.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from typing import TYPE_CHECKING

import numpy as np

from logitport import Client, Request

if TYPE_CHECKING:
    from logitport.session import Handle, Session

TARGET = "127.0.0.1:50051"
VOCAB, ROWS, STEPS = 32_000, 8, 400


def add(session: Session) -> list[Handle]:
    processors = [("no_repeat_ngram", {"ngram_size": 3}), ("logit_bias", {"logit_bias": {"5": 1.0}})]
    return [session.add(Request(list(range(500)), processors=processors)) for _ in range(ROWS)]


def step(session: Session, handles: list[Handle], number: int) -> None:
    session.step({handle: [(7 * number + row) % VOCAB] for row, handle in enumerate(handles)}).edits()


def hostile(client: Client, transport: str, sessions: int) -> None:
    """Step in many sessions at the same time, without a pause."""
    opened = [client.session(vocab_size=VOCAB, transport=transport) for _ in range(sessions)]
    handles = [add(session) for session in opened]
    print("ready", flush=True)

    def run(session: Session, of_session: list[Handle]) -> None:
        number = 0
        while True:
            step(session, of_session, number := number + 1)

    for each in zip(opened, handles, strict=True):
        threading.Thread(target=run, args=each, daemon=True).start()
    threading.Event().wait()


def innocent(client: Client, transport: str) -> None:
    """A step each 5 ms. For each line of stdin, prints milliseconds: the median, the p99 and the longest."""
    with client.session(vocab_size=VOCAB, transport=transport) as session:
        handles, number = add(session), 0
        print(json.dumps(session.transport if hasattr(session, "transport") else transport), flush=True)
        for _ in sys.stdin:
            seconds = []
            for _ in range(STEPS):
                began = time.perf_counter()
                step(session, handles, number := number + 1)
                seconds.append(time.perf_counter() - began)
                time.sleep(0.005)
            found = np.quantile(seconds, (0.5, 0.99, 1.0)) * 1e3
            print(json.dumps(found.round(3).tolist()), flush=True)


def main() -> None:
    what, transport, token, *count = sys.argv[1:]
    with Client(TARGET, token=token) as client:
        if what == "hostile":
            hostile(client, transport, int(count[0]))
        else:
            innocent(client, transport)


if __name__ == "__main__":
    main()
