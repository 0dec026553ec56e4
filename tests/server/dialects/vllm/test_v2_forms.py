"""The dialect of vLLM's revised model runner: other ways to write a processor for it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from tests.server.dialects.vllm.v2_requests import VOCAB, Requests

if TYPE_CHECKING:
    from logitport_session.stubs.vllm.v1.worker.gpu.sample.logits_processor import LogitsContext


def test_a_minimal_class_without_base() -> None:
    class Plain:
        def __init__(self, vllm_config: Any, req_states: Any, amount: float = 1.0) -> None:
            assert vllm_config.speculative_config is None
            self.amount = amount

        def add_request(self, req_idx: int, sampling_params: Any) -> None:
            pass

        def apply(self, logits: torch.Tensor, ctx: LogitsContext) -> torch.Tensor:
            return logits + self.amount

    plain = torch.arange(float(VOCAB)).view(1, VOCAB)
    for processor, amount in ((Plain, 1.0), (partial(Plain, amount=2.0), 2.0)):
        requests = Requests(processor)
        requests.add([1])
        assert torch.equal(requests.call(0), plain + amount)
