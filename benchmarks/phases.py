"""The time of a phase check in the compiled core: python -m benchmarks.phases.

Steps of 64 requests with chains of 8 processors that deny one id, with and without a phase. The difference, divided by
rows and processors, is the time of a check.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import numpy as np

from logitport.core.compiled import core
from logitport.core.history import History
from logitport.phases import PHASE_PRESETS, PHASES, tracker_fields
from logitport_proto import processing_pb2

ROWS, CHAIN, STEPS, ROUNDS = 64, 8, 300, 15
PROMPT = 8192
VOCAB_SIZE = 152_000


def messages() -> list[bytes]:
    """The frames of the steps, each with one id for each request."""
    follower = History(np.arange(PROMPT, dtype=np.int32))
    found = []
    for step in range(STEPS):
        columns = processing_pb2.Step(
            slots=np.arange(ROWS, dtype="<i4").tobytes(),
            generations=np.zeros(ROWS, "<i4").tobytes(),
            base_lengths=np.full(ROWS, len(follower), "<i4").tobytes(),
            history_crcs=np.full(ROWS, follower.crc(), "<u4").tobytes(),
            new_token_counts=np.ones(ROWS, "<i4").tobytes(),
            new_token_ids=np.full(ROWS, 1000 + step, "<i4").tobytes(),
        )
        found.append(processing_pb2.SessionRequest(seq=step + 1, step=columns).SerializeToString())
        follower.append(1000 + step)
    return found


def seconds_a_step(frames: list[bytes], phase: str) -> float:
    """The median time of a step whose processors hold in a phase; "" for no phase."""
    batch = core.Batch(VOCAB_SIZE, 4, 1 << 20, 1 << 20, 1 << 20, [], [])
    tags = tracker_fields(PHASE_PRESETS["qwen3"])
    kept: list[Any] = []
    for slot in range(ROWS):
        history = History(np.arange(PROMPT, dtype=np.int32))
        states = [core.TokenList(np.array([7], np.int32)) for _ in range(CHAIN)]
        if phase:
            states = [core.PhasedState(state, history, PHASES.index(phase), *tags) for state in states]
        batch.put(slot, 0, history, [(state, "key", "name") for state in states])
        kept.append((history, states))
    times = []
    for seq, frame in enumerate(frames, 1):
        begin = time.perf_counter()
        reply = batch.step(frame, seq, 0, False, core.Transport.LOCAL)
        times.append(time.perf_counter() - begin)
        if reply is None:
            raise RuntimeError(f"step {seq} was refused")
    return statistics.median(times)


def main() -> None:
    """Print nanoseconds for each row and processor: without a phase, in the answer, and outside it."""
    frames = messages()
    kinds = ("", "answer", "thinking")  # the output is an answer
    rounds = [[seconds_a_step(frames, kind) for kind in kinds] for _ in range(ROUNDS)]
    nanoseconds = [statistics.median(each) / (ROWS * CHAIN) * 1e9 for each in zip(*rounds, strict=True)]
    print(f"without a phase {nanoseconds[0]:.1f} ns a row and processor")
    for kind, value in zip(("within the phase", "outside the phase"), nanoseconds[1:], strict=True):
        print(f"{kind} {value:.1f} ns: {value - nanoseconds[0]:+.1f} ns")


if __name__ == "__main__":
    main()
