"""vLLM's own processors with their kernels, in logitport's dialect: random batches compared with a naive model.

Run it as a program: TRITON_INTERPRET=1 and CUDA_VISIBLE_DEVICES= must be set before vLLM is imported. Only the buffers
are not vLLM's, because those need a GPU.
"""

from __future__ import annotations

import random
from typing import Any

from vllm.triton_utils import HAS_TRITON
from vllm.v1.worker.gpu import buffer_utils
from vllm.v1.worker.gpu.sample.logits_processor import LogitsProcessor

from logitport_session.stubs.vllm.v1.worker.gpu.buffer_utils import StagedWriteTensor, UvaBackedTensor
from tests.server.conftest import AddOutputs, DenyHistory, Engine
from tests.server.dialects.vllm.test_v2_model import REQUESTS, VOCAB, RandomEngine
from tests.slot_processors import derive

buffer_utils.StagedWriteTensor, buffer_utils.UvaBackedTensor = StagedWriteTensor, UvaBackedTensor

from vllm.v1.worker.gpu.sample.bad_words import BadWordsState  # noqa: E402 - they import the buffers as patched above
from vllm.v1.worker.gpu.sample.logit_bias import LogitBiasState  # noqa: E402

SEEDS = 4
STEPS = 40


class Biases(LogitBiasState):
    """vLLM's logit bias and minimum of tokens, with the parameters of the naive model."""

    def add_request(self, req_idx: int, sampling_params: Any) -> bool:
        extra, params = sampling_params.extra_args or {}, sampling_params.clone()
        params.logit_bias = {int(token_id): bias for token_id, bias in (extra.get("bias") or {}).items()}
        params.min_tokens, params._all_stop_token_ids = extra.get("min_tokens", 0), set(extra.get("stop") or ())
        return bool(super().add_request(req_idx, params))


class BadWords(BadWordsState):
    """vLLM's bad words; its tokenizer usually provides their ids."""

    def add_request(self, req_idx: int, sampling_params: Any) -> bool:
        params = sampling_params.clone()
        params._bad_words_token_ids = (sampling_params.extra_args or {}).get("bad_words") or []
        return bool(super().add_request(req_idx, params))


def main() -> None:
    """Raise if a row differs from the model's."""
    assert HAS_TRITON
    classes = (Biases, BadWords, derive(LogitsProcessor).Counts, DenyHistory, AddOutputs)
    for seed in range(SEEDS):
        engine = RandomEngine(
            Engine(VOCAB, *classes, max_requests_per_session=REQUESTS, max_draft_tokens=3), random.Random(seed)
        )
        for _ in range(STEPS):
            engine.step()


if __name__ == "__main__":
    main()
