"""`top_k` and `top_p`: keep the ids with the highest logits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from logitport_programs.authoring.declarations import Float, Int
from logitport_programs.authoring.processor import TensorProcessor

if TYPE_CHECKING:
    import torch

    from logitport_programs.authoring.tensor_history import TensorHistory

MAX_TOP_K = 1024


class TopK(TensorProcessor):
    """Keeps the k ids with the highest logits.

    Parameters:
        top_k: an integer of at most 1024; 0 and -1 keep all ids.

    All ids with the logit of the last one are kept, so that more than k remain if logits are equal. This is the rule of
    vLLM 0.33 and of transformers 5.23's `TopKLogitsWarper`. SGLang 0.5.23 keeps k ids.

    A sort allows any k, but takes twenty times as long as the search for the 1024 highest logits, on a CPU.
    """

    builtin_name = "top_k"
    params: ClassVar = {"top_k": Int(ge=-1, le=MAX_TOP_K)}

    def process(self, logits: torch.Tensor, params: Any, history: TensorHistory) -> torch.Tensor:  # noqa: ARG002
        """Deny all logits below the k-th one."""
        import torch

        # A vocabulary may have fewer than MAX_TOP_K ids.
        padded = torch.nn.functional.pad(logits, (0, MAX_TOP_K), value=-torch.inf)
        highest = padded.topk(MAX_TOP_K).values
        kth = highest.gather(-1, (params.top_k - 1).clamp(min=0)[:, None])
        kth = torch.where(params.top_k[:, None] > 0, kth, -torch.inf)
        return logits.masked_fill(logits < kth, -torch.inf)


class TopP(TensorProcessor):
    """Keeps the smallest set of ids with the highest probabilities whose sum is at least p.

    Parameters:
        top_p: a number above 0 and at most 1.

    At least one id is kept. Of ids with equal logits, those with the higher ids are kept first. This is the rule of
    vLLM 0.33 and of transformers 5.23's `TopPLogitsWarper`, which both add up probabilities from the lowest one.
    """

    builtin_name = "top_p"
    params: ClassVar = {"top_p": Float(gt=0, le=1)}

    def process(self, logits: torch.Tensor, params: Any, history: TensorHistory) -> torch.Tensor:  # noqa: ARG002
        """Deny the ids whose probabilities, added from the lowest one, are at most 1 - p."""
        import torch

        ordered, order = logits.sort(dim=-1)
        sums = ordered.softmax(-1, dtype=torch.float32).cumsum(-1)
        removed = sums <= 1 - params.top_p[:, None]
        removed[:, -1] = False
        return logits.scatter(-1, order, ordered.masked_fill(removed, -torch.inf))
