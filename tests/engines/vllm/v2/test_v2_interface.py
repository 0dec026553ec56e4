"""Processors derived from vLLM's own base class: run natively, and by logitport's dialect with vLLM's own objects."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
import torch
from vllm import SamplingParams
from vllm.v1.worker.gpu.sample.logits_processor import LogitsContext, LogitsProcessor, LogitsProcRequestState

from logitport import History
from logitport_session.dialects import RequestContext, make_dialect
from tests.engines.checkpoint import VOCAB_SIZE
from tests.engines.vllm.v2.driver import Runner
from tests.slot_processors import derive

if TYPE_CHECKING:
    from logitport_session.dialects import Dialect

CLASSES = derive(LogitsProcessor)
PARAMS: dict[str, dict[str, Any]] = {
    "Biases": {"bias": {"9": 2.5, "30": -4.0}, "min_tokens": 20, "stop": [2, 5]},
    "BadWords": {"bad_words": [[token_id] for token_id in range(3, 40)] + [[40, 41], [41, 42, 43]]},
    "Counts": {},
}


class ByDialect(LogitsProcessor):
    """Runs the rows of a step through the dialect, which has its own buffers and slots."""

    processor: ClassVar[type[Any]]

    def __init__(self, vllm_config: Any, req_states: Any) -> None:
        self.dialect: Dialect = make_dialect(self.processor, "its name", shipped=False)
        self.slots = req_states
        self.held: dict[int, tuple[History, Any]] = {}

    def add_request(self, req_idx: int, sampling_params: Any) -> bool:
        ids = self.slots.all_token_ids.gpu[req_idx, : self.slots.prefill_len.np[req_idx]].tolist()
        prompt = int(self.slots.prompt_len.np[req_idx])
        history = History(ids[:prompt], ids[prompt:])
        context = RequestContext("r", history, {}, VOCAB_SIZE, max_requests=self.slots.max_num_reqs)
        self.held[req_idx] = history, self.dialect.start(context, sampling_params.extra_args or {})
        return True

    def apply(self, logits: torch.Tensor, ctx: LogitsContext) -> torch.Tensor:
        for slot in ctx.idx_mapping.tolist():
            history = self.held[slot][0]
            history.extend(self.slots.all_token_ids.gpu[slot, len(history) : self.slots.total_len.gpu[slot]].tolist())
        offsets = ctx.expanded_local_pos.tolist()
        self.dialect.drafts = [ctx.input_ids[row - offset + 1 : row + 1].tolist() for row, offset in enumerate(offsets)]
        return self.dialect.process([self.held[slot][1] for slot in ctx.expanded_idx_mapping.tolist()], logits)


def tokens(processor: type[Any], drafts: int, extra_args: dict[str, Any]) -> list[list[int]]:
    """Return the output of ten requests in six slots; some of them are preempted."""
    draw = random.Random(4)
    runner = Runner(drafts=drafts, chunk=1000, processor=processor, seed=7)
    sequences = [
        runner.submit(
            f"r{place}",
            [draw.randrange(VOCAB_SIZE) for _ in range(1 + place)],
            SamplingParams(temperature=0.0, extra_args=dict(extra_args)),
            64 - 4 * place,
        )
        for place in range(10)
    ]
    runner.run()
    assert runner.preemptions > 2
    return [sequence.outputs for sequence in sequences]


@pytest.mark.parametrize("drafts", [0, 3])
@pytest.mark.parametrize("name", PARAMS)
def test_tokens_are_the_native_ones(name: str, drafts: int) -> None:
    processor = getattr(CLASSES, name)
    native = tokens(processor, drafts, PARAMS[name])
    by_dialect = type("ByDialect", (ByDialect,), {"processor": processor})
    assert tokens(by_dialect, drafts, PARAMS[name]) == native


class Looks(LogitsProcessor):
    """Checks the types of its arguments."""

    def __init__(self, vllm_config: Any, req_states: Any) -> None:
        assert type(req_states) is LogitsProcRequestState
        self.states = req_states

    def add_request(self, req_idx: int, sampling_params: Any) -> bool:
        assert type(sampling_params) is SamplingParams
        return sampling_params.extra_args == {"here": 1}

    def apply(self, logits: torch.Tensor, ctx: Any) -> torch.Tensor:
        assert type(ctx) is LogitsContext
        return logits + 1


def test_it_gets_vllms_own_objects() -> None:
    dialect = make_dialect(Looks, "its name", shipped=False)
    state = dialect.start(RequestContext("r", History([1, 2]), {}, 4), {"here": 1})
    assert dialect.process([state], torch.zeros(1, 4)).tolist() == [[1.0] * 4]


def test_vllms_own_processors_in_the_dialect() -> None:
    """Its logit bias and bad words with their kernels, which Triton interprets, in a separate process."""
    environment = os.environ | {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    subprocess.run([sys.executable, "-m", "tests.engines.vllm.v2.own_processors"], env=environment, check=True)
