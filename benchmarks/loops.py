"""How early `loop_guard` finds loops, what else it finds, its time and that of phases: `python -m benchmarks.loops`.

`publish` writes the table.

A loop is a text that ends in a part of itself, again and again. Other findings are counted in texts without loops,
as ids of a BPE and as bytes. The time of a row-step is that of a step of 256 requests with a short ban list and the
guard, minus that of the same step without the guard, in turns. That of a phase is measured alike: the list holds in the
thinking block, which is open in all rows, minus the list without a phase.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import suite, texts
from benchmarks.kinds import END, START
from benchmarks.measure import ROUNDS, over_rounds
from benchmarks.records import BarLine
from benchmarks.report import Report
from benchmarks.workloads import Workload
from logitport import Client, EditRequest, History, Request
from logitport_builtins import LoopGuard

_VOCABULARY = 1 << 20
_LOOPS = 50
_LONGEST = 400
_STEPS = 200
_BAN = ("disallowed_tokens", {"token_ids": [5]})
_GUARD = ("loop_guard", {"action": "report"})
_TAGS = {"thinking_start_ids": [START], "thinking_end_ids": [END]}
_BAN_IN_THINKING = (_BAN[0], {**_BAN[1], "phase": "thinking", "phase_tags": _TAGS})


def run() -> Report:
    """Run all parts."""
    return suite.run({"loops": _loops, "other texts": _others, "time": _time})


def _loops() -> Iterator[BarLine]:
    """The ids from the begin of a loop until it is found."""
    blocks = [_block(int(period)) for period in np.linspace(1, _LONGEST, _LOOPS)]
    many = [block for block in blocks if len(set(block)) >= 12]
    few = [block for block in blocks if len(set(block)) < 12]
    name = "ids until a loop is found ÷ max(3 periods, 64)"
    yield BarLine(f"{name}, {len(many)} loops with 12 distinct ids or more, the worst", _latest(many), 1.0)
    yield BarLine(f"{name}, {len(few)} loops with fewer, the worst", _latest(few), 1.0)
    yield BarLine(f"{name}, all {_LOOPS} loops, with plain_repeats 0", _latest(blocks, plain_repeats=0), 1.0)


def _block(period: int) -> list[int]:
    """A part of the text of this page's module, the same at each call."""
    ids = _ids("BPE", Path(texts.__file__).read_text())
    return ids[100 : 100 + period]


def _latest(blocks: Sequence[list[int]], **params: Any) -> Any:
    return over_rounds(np.array([max(_found_after(block, params) / max(3 * len(block), 64) for block in blocks)]))


def _found_after(block: list[int], params: dict[str, Any]) -> int:
    """How many ids of a loop are written until it is found, after a text that it does not continue."""
    before = list(range(_VOCABULARY - 1000, _VOCABULARY))
    request = _start(before, params)
    for count in range(1, 200 * len(block) + 1):
        token_id = block[(count - 1) % len(block)]
        request.history.append(token_id)
        request.state.advance(request.history, token_id)
        if request.state.cycle is not None:
            return count
    raise AssertionError(f"a loop of {len(block)} ids was not found")


def _others() -> Iterator[BarLine]:
    """Findings in texts without loops: every cycle that becomes complete counts."""
    for name, found in texts.kinds().items():
        for tokens in ("BPE", "bytes"):
            ids = [_ids(tokens, text) for text in found]
            size = sum(len(text.encode()) for text in found) / 1e6
            case = f"found in {size:.1f} MB of {name}, {sum(map(len, ids)) / 1e6:.1f} million ids, {tokens}"
            bar = 0 if tokens == "BPE" and name != "code of tests" else None
            yield BarLine(case, over_rounds(np.array([float(sum(map(_count, ids)))])), bar, "findings")


def _count(ids: list[int]) -> int:
    request = _start([], {})
    history, state, found, count = request.history, request.state, None, 0
    for token_id in ids:
        history.append(token_id)
        state.advance(history, token_id)
        cycle = state.cycle
        count += cycle is not None and cycle != found
        found = cycle
    return count


def _ids(tokens: str, text: str) -> list[int]:
    if tokens == "bytes":
        return list(text.encode())
    found: list[int] = _tokenizer().encode(text).ids
    return found


@cache
def _tokenizer() -> Any:
    kinds = texts.kinds()
    return texts.train([*kinds["code"], *kinds["prose"]])


def _start(output: Sequence[int], params: dict[str, Any]) -> EditRequest:
    """A request with `loop_guard`."""
    request = EditRequest({"action": "report", **params}, History([], output), _VOCABULARY)
    LoopGuard().start(request)
    return request


def _time() -> Iterator[BarLine]:
    """Processor time of the guard in a row-step."""
    ordinary = {history: _nanoseconds(Workload(rows=256, history=history)) for history in (512, 32_768)}
    loop = _nanoseconds(Workload(rows=256, history=32_768), period=100)
    name = "loop_guard, a row-step of 256 rows"
    yield BarLine(f"{name}, 32k ids", over_rounds(ordinary[32_768]), 300, "ns")
    yield BarLine(f"{name}, 512 ids", over_rounds(ordinary[512]), None, "ns")
    yield BarLine(f"{name}, 32k ids ÷ 512 ids", over_rounds(ordinary[32_768] / np.median(ordinary[512])), 1.2)
    yield BarLine(f"{name}, 32k ids, in loops of 100 ids", over_rounds(loop), 300, "ns")
    phase = _nanoseconds(Workload(rows=256, history=512), chain=[_BAN_IN_THINKING])
    yield BarLine("the check of a phase, a row-step of 256 rows, 512 ids", over_rounds(phase), 100, "ns")


def _nanoseconds(workload: Workload, period: int = 0, chain: Sequence[Any] = (_BAN, _GUARD)) -> Any:
    """Time of a step with the chain minus that with a short ban list, by row and round: float64[ROUNDS].

    With a `period`, the last half of each history is a loop of so many ids, which goes on.
    """
    histories, sampled = workload.histories(), np.array(workload.sampled(ROUNDS * _STEPS))
    if period:
        half = workload.history // 2
        for row, history in enumerate(histories):
            block = history[half : half + period]
            history[half:] = np.resize(block, workload.history - half)
            sampled[:, row] = np.resize(np.roll(block, -((workload.history - half - row % 64) % period)), len(sampled))
    with Client.embedded() as client:
        sides = [_Side(client, workload, histories, each) for each in ([_BAN], chain)]
        spent = np.array([[side.step(ids) for side in sides] for ids in sampled.tolist()])
    # The lower quartile, because other processes only add time.
    without, with_chain = np.quantile(spent.reshape(ROUNDS, _STEPS, 2), 0.25, axis=1).T
    return (with_chain - without) / workload.rows


class _Side:
    """An embedded session with one chain."""

    def __init__(self, client: Client, workload: Workload, histories: Any, chain: Any) -> None:
        self._session = client.session(vocab_size=workload.vocab_size)
        # Of different lengths, so that each step has a part of the rows that compare all periods.
        outputs = [ids[16 : len(ids) - row % 64] for row, ids in enumerate(histories)]
        self._handles = [self._session.add(Request(histories[0][:16], output, chain)) for output in outputs]
        self._session.step(dict.fromkeys(self._handles, ())).edits()
        gc.collect()

    def step(self, token_ids: Sequence[int]) -> int:
        """Processor time of a step in nanoseconds, of all threads."""
        new = {handle: (token_id,) for handle, token_id in zip(self._handles, token_ids, strict=True)}
        started = time.process_time_ns()
        self._session.step(new).edits()
        return time.process_time_ns() - started


if __name__ == "__main__":
    suite.main("loops", __doc__, "loops", run)
