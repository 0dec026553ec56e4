"""logitport's processors inside vLLM, without the service: the hook is compared with them."""

from __future__ import annotations

from typing import Any

from vllm.v1.sample.logits_processor import AdapterLogitsProcessor

from tests.engines.vllm.chains import in_process

KEY = "native"


class Native(AdapterLogitsProcessor):
    """`extra_args={"native": [[processor, parameters], ...]}`."""

    def is_argmax_invariant(self) -> bool:
        return False

    def new_req_logits_processor(self, params: Any) -> Any:
        chain = (params.extra_args or {}).get(KEY)
        return in_process(chain) if chain else None
