"""SGLang's own sampler on the device: the same mix by SGLang's processors, and by the hook.

Both sample greedily from the same random logits. The ids must be the same, and the hook must not be slower. Nothing
overlaps: a step begins when the last one's ids are known, as with SGLang's overlap schedule off.
"""

from __future__ import annotations

import json
import time
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from benchmarks.gpu import results
from benchmarks.gpu.job import Job
from benchmarks.gpu.sglang_sampling import Req, SGLangSampling, sample
from benchmarks.gpu.timing import synchronize
from benchmarks.kinds import BAN, NGRAM, THINKING
from benchmarks.measure import over_rounds
from benchmarks.workloads import Workload

_STEPS = 30
_WARM_UP = 5
_ROUNDS = 3
_OURS = {BAN: "disallowed_tokens", NGRAM: "no_repeat_ngram", THINKING: "thinking_budget"}


class Side:
    """A batch of SGLang's requests, and its processors."""

    def __init__(self, sglang: SGLangSampling, workload: Workload, device: str) -> None:
        self._sampler, self._device = sglang.sampler(), device
        self._reqs = [Req(str(row), ids) for row, ids in enumerate(workload.histories().tolist())]
        params = [{**self.params(workload, row), "__req__": weakref.proxy(req)} for row, req in enumerate(self._reqs)]
        entries = self.entries(sglang, workload)
        self._batch = sglang.batch(entries, params, workload.vocab_size, device)

    def params(self, workload: Workload, row: int) -> dict[str, Any]:
        """The custom parameters of a row."""
        kind = workload.kind(row)
        assert kind is not None
        return dict(kind.params)

    def entries(self, sglang: SGLangSampling, workload: Workload) -> list[tuple[Any, list[int]]]:
        """Processors with their rows: SGLang's own."""
        pairs = workload.rows_by_kind().items()
        return [(kind.theirs(sglang.processors)(), rows) for kind, rows in pairs if kind is not None]

    def step(self, logits: torch.Tensor) -> list[int]:
        """Sample ids, and add them to the requests."""
        ids: list[int] = sample(self._sampler, self._batch, logits).tolist()
        for req, token_id in zip(self._reqs, ids, strict=True):
            req.output_ids.append(token_id)
        return ids


class HookSide(Side):
    """The same requests, which the hook processes."""

    def __init__(self, sglang: SGLangSampling, workload: Workload, device: str, client: Any) -> None:
        from logitport.integrations.common.ranks import Ranks
        from logitport.integrations.sglang.hook import Hook

        self._hook = Hook(lambda: client, lambda: (), Ranks(), refusal="")
        super().__init__(sglang, workload, device)

    def params(self, workload: Workload, row: int) -> dict[str, Any]:
        kind = workload.kind(row)
        assert kind is not None
        return {"logitport": json.dumps([[_OURS[kind], dict(kind.params)]])}

    def entries(self, sglang: SGLangSampling, workload: Workload) -> list[tuple[Any, list[int]]]:  # noqa: ARG002
        return [(self._process, list(range(workload.rows)))]

    def _process(self, logits: torch.Tensor, params: Any) -> torch.Tensor:
        self._hook.process(logits, params)
        return logits


def run(job: Job) -> None:
    """Measure by turns, in both orders."""
    workload = job.batch()
    case = f"{workload.rows} rows"
    with job.case(case), job.connected("cpu") as (_, client):
        sglang = SGLangSampling()
        sides = {"SGLang's own": Side(sglang, workload, job.device)}
        sides["the hook"] = HookSide(sglang, workload, job.device, client)
        count = _WARM_UP + _ROUNDS * job.steps(_STEPS)
        seconds: dict[str, list[float]] = {name: [] for name in sides}
        same = True
        for step, logits in enumerate(_random_logits(job, workload, count)):
            found = {}
            for name in sorted(sides, reverse=bool(step % 2)):
                own = logits.clone()
                synchronize(job.device)
                begin = time.perf_counter()
                found[name] = sides[name].step(own)
                seconds[name].append(time.perf_counter() - begin)
            same = same and found["the hook"] == found["SGLang's own"]
        job.check(case, same, f"the same ids in {count} steps")
        medians = {
            name: np.median(np.reshape(taken[_WARM_UP:], (_ROUNDS, -1)), axis=1) for name, taken in seconds.items()
        }
        for name, taken in medians.items():
            job.record(case, f"tokens a second, {name}", workload.rows / float(np.median(taken)), "tokens/s")
        job.ratio(case, results.SAMPLING, over_rounds(medians["SGLang's own"] / medians["the hook"]))


def _random_logits(job: Job, workload: Workload, count: int) -> Iterator[torch.Tensor]:
    generator = torch.Generator(device=job.device).manual_seed(0)
    shape = workload.rows, workload.vocab_size
    for _ in range(count):
        yield torch.randn(shape, generator=generator, device=job.device).to(workload.dtype)
