"""One effect, written in every dialect: the matrix of dialects and engines compares it.

Every distinct id of a request's history loses 1.5, and one id, which depends on the first id and on the length, is
denied. So every token depends on the whole history, and a processor with a wrong history gives other tokens.

No base class of an engine is named here, because no engine need be installed where the classes are shipped from:
imports from an engine run on the server.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from logitport import CustomLogitProcessor, EditProcessor
from logitport_programs.types import VOCAB, Element
from tests.programs.runtime.build import Writer

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from logitport import EditRequest, RowEdits
    from logitport_programs.program import Program

PUSH = 1.5
WINDOW = 512


def denied(history: Sequence[int], vocab_size: int) -> int:
    """Return the id that may not come next."""
    return (history[0] + len(history)) % vocab_size


def apply(history: Sequence[int], logits: Any) -> Any:
    """Apply the effect, in place, to a row of logits: a torch tensor or a numpy array, float[vocab_size]."""
    logits[sorted(set(history))] -= PUSH
    logits[denied(history, len(logits))] = -float("inf")
    return logits


class Edits(EditProcessor):
    """logitport's own dialect, logits-free."""

    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        history = request.history.token_ids.tolist()
        seen = sorted(set(history))
        edits.bias(seen, [-PUSH] * len(seen))
        edits.deny([denied(history, request.vocab_size)])


class SGLang(CustomLogitProcessor):
    """SGLang's dialect."""

    def __call__(self, logits: torch.Tensor, custom_param_list: list[dict[str, Any]] | None = None) -> torch.Tensor:
        for row, params in zip(logits, custom_param_list or (), strict=True):
            req = params["__req__"]
            apply([*req.origin_input_ids, *req.output_ids], row)
        return logits


class VllmV1:
    """vLLM's batch-level dialect: state by batch index, updated from update records."""

    def __init__(self, vllm_config: Any, device: Any, is_pin_memory: bool) -> None:
        self.histories: dict[int, tuple[list[int], list[int]]] = {}

    @classmethod
    def validate_params(cls, sampling_params: Any) -> None: ...

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: Any) -> None:
        if batch_update is None:
            return
        from vllm.v1.sample.logits_processor import MoveDirectionality  # vLLM's on the server, or its stub

        held = self.histories
        for index in batch_update.removed:
            held.pop(index, None)
        for index, _, prompt_ids, output_ids in batch_update.added:
            held[index] = prompt_ids, output_ids
        for one, other, direction in batch_update.moved:
            of_one, of_other = held.pop(one, None), held.pop(other, None)
            if of_one is not None:
                held[other] = of_one
            if of_other is not None and direction is MoveDirectionality.SWAP:
                held[one] = of_other

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        for index, (prompt_ids, output_ids) in self.histories.items():
            apply([*prompt_ids, *output_ids], logits[index])
        return logits


class VllmRequest:
    """vLLM's request-level dialect: a function for each request."""

    def __init__(self, vllm_config: Any, device: Any, is_pin_memory: bool) -> None: ...

    def is_argmax_invariant(self) -> bool:
        return False

    def new_req_logits_processor(self, params: Any) -> Any:
        return vllm_function


def vllm_function(prompt_ids: list[int], output_ids: list[int], logits: torch.Tensor) -> torch.Tensor:
    """vLLM's bare function."""
    return apply([*prompt_ids, *output_ids], logits)


class VllmV2:
    """vLLM's dialect for the second model runner: state by slot, rows in any order, one row per draft token."""

    def __init__(self, vllm_config: Any, req_states: Any) -> None:
        self.req_states = req_states

    @classmethod
    def validate_params(cls, sampling_params: Any) -> None: ...

    def add_request(self, req_idx: int, sampling_params: Any) -> bool:
        return True

    def apply_staged_writes(self) -> None: ...

    def apply(self, logits: torch.Tensor, ctx: Any) -> torch.Tensor:
        for row, (slot, offset) in enumerate(
            zip(ctx.expanded_idx_mapping.tolist(), ctx.expanded_local_pos.tolist(), strict=True)
        ):
            first = row - offset  # a request's rows are contiguous, and their input ids are its drafts
            drafts = ctx.input_ids[first + 1 : row + 1].tolist()
            length = int(self.req_states.total_len.gpu[slot])
            history = self.req_states.all_token_ids.gpu[slot, :length].tolist()
            apply([*history, *drafts], logits[row])
        return logits


class Transformers:
    """transformers' dialect."""

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        for ids, row in zip(input_ids.tolist(), scores, strict=True):
            apply(ids, row)
        return scores


class Dynamo:
    """NVIDIA Dynamo's dialect: one row, edited in place."""

    def __call__(self, input_ids: Sequence[int], logits: torch.Tensor) -> None:
        apply(input_ids, logits)


def program() -> Program:
    """The effect as a program, which engines run themselves. Its window has whole histories."""
    write = Writer()
    logits = write("logits")
    pushed = write("where", write("token_mask"), write("subtract", logits, write.full(PUSH)), logits)
    length = write("unsqueeze", write("history_length"), axis=1)
    window = write("full", element=Element.INT64, shape=(), integer=WINDOW)
    first = write("gather_or", write("history"), write("subtract", window, length))
    total = write("add", first, length)
    ones = write("full", element=Element.INT64, shape=(VOCAB,), integer=1)
    vocab_size = write("sum", ones, axis=1)
    wrapped = write("where", write("less", total, vocab_size), total, write("subtract", total, vocab_size))
    write("scatter_drop", pushed, wrapped, write.full(-float("inf")))
    return write.verified(window=WINDOW, name="Effect").program


# The rows of the matrix, and what each of them ships.
DIALECTS: dict[str, Any] = {
    "logitport, logits-free": Edits,
    "SGLang": SGLang,
    "vLLM V1, batch-level": VllmV1,
    "vLLM V1, request-level": VllmRequest,
    "vLLM, bare function": vllm_function,
    "vLLM V2": VllmV2,
    "transformers": Transformers,
    "NVIDIA Dynamo": Dynamo,
    "program": program(),
}
