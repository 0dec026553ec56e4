"""The overhead of the vLLM hook per step, and of vLLM itself once any processor is loaded.

`python -m benchmarks.hooks`, in the environment that `make test-vllm` makes: the real engine, first runner, on a CPU.
Each engine is a process of its own. The second runner's calls are timed alone, without an engine.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HOOK = "logitport.integrations.vllm:RemoteLogitsProcessor"
NOTHING = "benchmarks.hooks_nothing:Nothing"
REQUESTS, IDS, VOCAB_SIZE = 8, 100, 32_000
CALLS = 20_000
CHAIN = [["disallowed_tokens", {"token_ids": list(range(2, 66))}], ["no_repeat_ngram", {"ngram_size": 3}]]

# By name of the measurement: the processors that vLLM loads, and whether requests use them.
ENGINES: dict[str, tuple[list[str], bool]] = {
    "vLLM without any processor": ([], False),
    "vLLM with a processor that does nothing": ([NOTHING], False),
    "vLLM with the hook, no request uses it": ([HOOK], False),
    "vLLM with the hook, all ask": ([HOOK], True),
}


def microseconds(call: Callable[[], object], calls: int) -> float:
    """Microseconds of one call, the median of seven runs."""
    seconds = []
    for _ in range(7):
        began = time.perf_counter()
        for _ in range(calls):
            call()
        seconds.append((time.perf_counter() - began) / calls)
    return statistics.median(seconds) * 1e6


@contextmanager
def environment() -> Iterator[Path]:
    """Start a server, set its environment variable, and create a checkpoint."""
    from tests.conftest import run_server
    from tests.engines.checkpoint import save_checkpoint

    with tempfile.TemporaryDirectory() as folder, run_server() as server:
        os.environ["LOGITPORT_TARGET"] = server.target
        yield save_checkpoint(Path(folder), vocab_size=VOCAB_SIZE)


def measure_engine(name: str, checkpoint: str) -> dict[str, float]:
    """Milliseconds per step of an engine in its own process, and microseconds of it in the hook."""
    from vllm import SamplingParams

    from tests.engines.vllm.conftest import run_engine

    processors, ask = ENGINES[name]
    extra = {"logitport": CHAIN} if ask else {}
    params = SamplingParams(temperature=0.0, max_tokens=IDS, ignore_eos=True, extra_args=extra)
    prompts = [{"prompt_token_ids": [5, 6, 7 + place]} for place in range(REQUESTS)]
    with run_engine(Path(checkpoint), os.environ["LOGITPORT_TARGET"], logits_processors=processors) as engine:
        engine.generate(prompts, params, use_tqdm=False)
        in_hook: list[float] = []
        if processors == [HOOK]:
            watch(engine, in_hook)
        milliseconds = []
        for _ in range(5):
            began = time.perf_counter()
            engine.generate(prompts, params, use_tqdm=False)
            milliseconds.append((time.perf_counter() - began) / IDS * 1e3)
    found = {"ms a step": statistics.median(milliseconds)}
    # Each step calls twice: `update_state` and `apply`. Steps in which requests come or go are few, and not the median.
    if in_hook:
        found["µs in the hook"] = statistics.median(map(sum, zip(in_hook[::2], in_hook[1::2], strict=False))) * 1e6
    return found


def watch(engine: Any, seconds: list[float]) -> None:
    """Time the hook's two calls of each step."""
    worker = engine.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker
    (processor,) = [it for it in worker.model_runner.input_batch.logitsprocs.all if hasattr(it, "_hook")]

    def timed(call: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def run(update: Any) -> Any:
            began = time.perf_counter()
            result = call(update)
            seconds.append(time.perf_counter() - began)
            return result

        return run

    processor.update_state, processor.apply = timed(processor.update_state), timed(processor.apply)


def measure_round_trip() -> float:
    """Microseconds of a session's step with the same requests, waited for and applied."""
    import torch

    from logitport import Client, Request

    with Client(os.environ["LOGITPORT_TARGET"]) as client:
        session = client.session(vocab_size=VOCAB_SIZE, dtype=torch.float32)
        handles = [session.add(Request([5, 6, 7 + place], processors=CHAIN)) for place in range(REQUESTS)]
        logits = torch.randn(REQUESTS, VOCAB_SIZE)
        token = iter(range(10**9))

        def step() -> None:
            session.step({handle: [next(token) % VOCAB_SIZE] for handle in handles}).apply(logits)

        for _ in range(50):
            step()
        return microseconds(step, 300)


def measure_idle() -> dict[str, float]:
    """Microseconds of the hook's own code for each call of vLLM, if no request uses it."""
    import torch
    from vllm import SamplingParams

    from logitport.integrations.vllm import RemoteLogitsProcessor

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
        "first runner, a step": microseconds(lambda: step_of_first(None), CALLS),
        f"first runner, a step to which {REQUESTS} requests come": microseconds(lambda: step_of_first(update), CALLS),
        "second runner, a step": microseconds(second.apply_staged_writes, CALLS),
        "second runner, a request": microseconds(lambda: second.add_request(0, params), CALLS),
    }


def main() -> None:
    with environment() as checkpoint:
        print(
            f"{REQUESTS} requests, {VOCAB_SIZE} ids, {IDS} steps; one line is a median\n\nThe hook, no request uses it"
        )
        for name, found in measure_idle().items():
            print(f"  {name}: {found:.2f} µs")
        print(f"\nA session's step, begun, waited for and applied\n  {measure_round_trip():.0f} µs\n\nThe engine")
        for name in ENGINES:
            command = [sys.executable, "-m", "benchmarks.hooks", name, str(checkpoint)]
            printed = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
            found = json.loads(printed.splitlines()[-1])
            hook = f", of which the hook takes {found['µs in the hook']:.1f} µs" if "µs in the hook" in found else ""
            print(f"  {name}: {found['ms a step']:.2f} ms a step{hook}")


if __name__ == "__main__":
    if sys.argv[1:]:
        print(json.dumps(measure_engine(*sys.argv[1:])))
    else:
        main()
