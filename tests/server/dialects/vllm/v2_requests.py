"""Processors of vLLM's revised model runner that record their calls, and requests for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import torch

from logitport import History
from logitport_session.dialects import RequestContext, make_dialect
from logitport_session.stubs.vllm.v1.worker.gpu.sample.logits_processor import LogitsContext, LogitsProcessor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from logitport_session.dialects import Dialect

VOCAB = 6


class RecordsCalls(LogitsProcessor):
    """Records the calls of all its instances."""

    calls: ClassVar[list[Any]]
    contexts: ClassVar[list[LogitsContext]]

    def __init_subclass__(cls) -> None:
        cls.calls, cls.contexts = [], []

    def __init__(self, vllm_config: Any, req_states: Any) -> None:
        self.config, self.states = vllm_config, req_states
        self.calls.append("made")

    def add_request(self, req_idx: int, sampling_params: Any) -> Any:
        params = sampling_params.extra_args or {}
        if "refuse" in params:
            raise ValueError("refuse")
        self.calls.append(("add", req_idx))
        return params.get("say", True)

    def apply_staged_writes(self) -> None:
        self.calls.append("flush")

    def apply(self, logits: torch.Tensor, ctx: LogitsContext) -> torch.Tensor:
        self.calls.append("apply")
        self.contexts.append(ctx)
        return logits


def recording_class() -> type[RecordsCalls]:
    class Recording(RecordsCalls):
        pass

    return Recording


class Requests:
    """Requests of one dialect.

    Attributes:
        dialect: dialect of the processor's class.
        states: states of the requests, in the order of their creation.
    """

    def __init__(self, processor: Any, context: dict[str, Any] | None = None) -> None:
        self.dialect: Dialect = make_dialect(processor, "its name", shipped=True)
        self.states: list[Any] = []
        self.histories: list[History] = []
        self._context = context or {}

    def add(self, prompt: Sequence[int] = (), output: Sequence[int] = (), **params: Any) -> Any:
        self.histories.append(History(prompt, output))
        context = RequestContext("r", self.histories[-1], {}, VOCAB, **self._context)
        self.states.append(self.dialect.start(context, params))
        return self.states[-1]

    def call(self, *rows: tuple[int, Sequence[int]] | int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Make one call; each row is the number of a request, and the draft tokens before the row."""
        placed = [row if isinstance(row, tuple) else (row, ()) for row in rows]
        if any(drafts for _, drafts in placed):
            self.dialect.drafts = [drafts for _, drafts in placed]
        logits = torch.arange(float(len(rows) * VOCAB)).view(len(rows), VOCAB).to(dtype)
        result = self.dialect.process([self.states[number] for number, _ in placed], logits)
        self.dialect.drafts = ()
        return result


def fields(context: LogitsContext) -> dict[str, list[int]]:
    return {name: value.tolist() for name, value in vars(context).items()}
