"""Processors of vLLM's batch dialect that record their updates, and requests with a naive model of each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import torch

from logitport import History
from logitport_session.dialects import RequestContext, make_dialect
from logitport_session.stubs.vllm.v1.sample.logits_processor import (
    BatchUpdate,
    LogitsProcessor,
    process_dict_updates,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from logitport_session.dialects import Dialect

VOCAB = 8


class RecordsUpdates(LogitsProcessor):
    """Records its batch updates."""

    made: ClassVar[list[RecordsUpdates]] = []
    invariant: ClassVar[bool] = False

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        self.updates: list[BatchUpdate | None] = []
        self.made.append(self)

    def is_argmax_invariant(self) -> bool:
        return self.invariant

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        self.updates.append(batch_update)

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        return logits


class Counts(RecordsUpdates):
    """Adds the number of output ids times `by` to the logit of the prompt's first id."""

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        super().__init__(vllm_config, device, is_pin_memory)
        self.states: dict[int, tuple[int, list[int], list[int]]] = {}

    @staticmethod
    def new_state(params: Any, prompt: list[int] | None, output: list[int]) -> tuple[int, list[int], list[int]] | None:
        by = (params.extra_args or {}).get("by")
        if by == "bomb":
            raise ValueError("boom")
        assert prompt is not None
        return None if by is None else (by, prompt, output)

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        super().update_state(batch_update)
        process_dict_updates(self.states, batch_update, self.new_state)

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        for index, (by, prompt, output) in self.states.items():
            if by == 13 and len(output) == 3:
                raise RuntimeError("thirteen")
            logits[index, prompt[0]] += by * len(output)
        return logits


class DialectRequest:
    """A request, and the facts for a naive model of it."""

    def __init__(self, dialect: Dialect, prompt: Sequence[int] = (1,), **params: Any) -> None:
        self.dialect = dialect
        self.history = History(prompt)
        self.prompt, self.output, self.by = list(prompt), list[int](), params.get("by")
        sampling = params.pop("sampling_params", {})
        self.state = dialect.start(RequestContext("r", self.history, sampling, VOCAB), params)
        self.advance: Any = dialect.token_callback(self.state)

    def append(self, token_id: int) -> None:
        self.history.append(token_id)
        self.output.append(token_id)
        self.advance(token_id)

    def rewind(self, outputs: int) -> None:
        del self.output[outputs:]
        self.history.rewind(len(self.prompt) + outputs)
        self.dialect.rewind(self.state)

    def expected(self) -> list[float]:
        row = [0.0] * VOCAB
        row[self.prompt[0]] += (self.by or 0) * len(self.output)
        return row


def shipped_dialect(processor: Any = RecordsUpdates) -> Dialect:
    processor.made.clear()
    return make_dialect(processor, "its name", shipped=True)


def step(dialect: Dialect, *requests: DialectRequest, logits: torch.Tensor | None = None) -> torch.Tensor:
    given = torch.zeros(len(requests), VOCAB) if logits is None else logits
    return dialect.process([request.state for request in requests], given)
