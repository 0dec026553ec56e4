"""The smallest class that vLLM accepts as a processor."""

from __future__ import annotations

from typing import Any

from vllm.v1.sample.logits_processor import LogitsProcessor


class Nothing(LogitsProcessor):
    """A processor that does nothing."""

    def __init__(self, *arguments: Any) -> None:
        pass

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: Any) -> None:
        pass

    def apply(self, logits: Any) -> Any:
        return logits
