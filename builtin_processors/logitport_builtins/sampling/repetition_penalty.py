"""`repetition_penalty`: lowers the logits of ids that occurred before."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from logitport_programs.authoring.declarations import Float
from logitport_programs.authoring.processor import TensorProcessor

if TYPE_CHECKING:
    import torch

    from logitport_programs.authoring.tensor_history import TensorHistory


class RepetitionPenalty(TensorProcessor):
    """Divides positive logits of all ids of the history by a penalty, and multiplies the other ones by it.

    Not an edit: the sign of a logit decides, so that logits are read.

    Parameters:
        repetition_penalty: a number above 0; below 1, it favors ids that occurred before.

    The ids of prompt and output count, as in vLLM 0.33 and in transformers 5.23's `RepetitionPenaltyLogitsProcessor`.
    SGLang 0.5.23 leaves the prompt out.
    """

    builtin_name = "repetition_penalty"
    params: ClassVar = {"repetition_penalty": Float(gt=0)}

    def process(self, logits: torch.Tensor, params: Any, history: TensorHistory) -> torch.Tensor:
        """Multiply or divide where the mask is set."""
        import torch

        penalty = params.repetition_penalty[:, None]
        penalized = torch.where(logits > 0, logits / penalty, logits * penalty)
        return torch.where(history.token_mask(), penalized, logits)
