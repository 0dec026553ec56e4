"""`min_p`, `typical_p`, `epsilon` and `eta`: deny ids by their probability."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from logitport_programs.authoring.declarations import Float
from logitport_programs.authoring.processor import TensorProcessor

if TYPE_CHECKING:
    import torch

    from logitport_programs.authoring.tensor_history import TensorHistory

_LOWEST = -3.4028234663852886e38  # of float32


class MinP(TensorProcessor):
    """Denies ids with a probability below p times the highest one.

    Parameters:
        min_p: a number in [0, 1]; 0 keeps all ids.

    The rule of vLLM 0.33 and of transformers 5.23's `MinPLogitsWarper`.
    """

    builtin_name = "min_p"
    params: ClassVar = {"min_p": Float(ge=0, le=1)}

    def process(self, logits: torch.Tensor, params: Any, history: TensorHistory) -> torch.Tensor:  # noqa: ARG002
        """Compare probabilities."""
        import torch

        probabilities = logits.softmax(-1, dtype=torch.float32)
        threshold = params.min_p[:, None] * probabilities.amax(-1, keepdim=True)
        return logits.masked_fill(probabilities < threshold, -torch.inf)


class TypicalP(TensorProcessor):
    """Locally typical sampling (Meister et al., 2022): keeps the ids with the most expected information.

    The ids are ordered by the distance between their information, -log p, and the entropy. The first ones are kept,
    until their probabilities sum up to `typical_p`.

    Parameters:
        typical_p: a number above 0 and below 1.

    The rule of transformers 5.23's `TypicalLogitsWarper`.
    """

    builtin_name = "typical_p"
    params: ClassVar = {"typical_p": Float(gt=0, lt=1)}

    def process(self, logits: torch.Tensor, params: Any, history: TensorHistory) -> torch.Tensor:  # noqa: ARG002
        """Sort by the distance, and deny the ids after the one that reaches the sum."""
        import torch

        scores = logits.float()
        log_probabilities = scores.log_softmax(-1)
        entropy = -(log_probabilities * log_probabilities.exp()).nansum(-1, keepdim=True)
        ordered, order = torch.sort((-log_probabilities - entropy).abs())
        sums = scores.gather(-1, order).softmax(-1).cumsum(-1)
        last = (sums < params.typical_p[:, None]).sum(-1, keepdim=True).clamp(max=logits.shape[-1] - 1)
        removed = ordered > ordered.gather(-1, last)
        removed[:, :1] = False
        return logits.masked_fill(removed.scatter(-1, order, removed), -torch.inf)


class Epsilon(TensorProcessor):
    """Epsilon sampling (Hewitt et al., 2022): denies ids with a probability below a threshold.

    Parameters:
        epsilon_cutoff: a number above 0 and below 1.

    The ids with the highest logit are kept. The rule of transformers 5.23's `EpsilonLogitsWarper`.
    """

    builtin_name = "epsilon"
    params: ClassVar = {"epsilon_cutoff": Float(gt=0, lt=1)}

    def process(self, logits: torch.Tensor, params: Any, history: TensorHistory) -> torch.Tensor:  # noqa: ARG002
        """Compare probabilities."""
        import torch

        removed = logits.softmax(-1, dtype=torch.float32) < params.epsilon_cutoff[:, None]
        return logits.masked_fill(removed & (logits < logits.amax(-1, keepdim=True)), -torch.inf)


class Eta(TensorProcessor):
    """Eta sampling (Hewitt et al., 2022): denies ids with a probability below a threshold, lower for high entropies.

    The threshold is the lower one of `eta_cutoff` and sqrt(`eta_cutoff`) * exp(-entropy).

    Parameters:
        eta_cutoff: a number above 0 and below 1.

    The ids with the highest logit are kept. The rule of transformers 5.23's `EtaLogitsWarper`.
    """

    builtin_name = "eta"
    params: ClassVar = {"eta_cutoff": Float(gt=0, lt=1)}

    def process(self, logits: torch.Tensor, params: Any, history: TensorHistory) -> torch.Tensor:  # noqa: ARG002
        """Compare probabilities."""
        import torch

        log_probabilities = logits.float().log_softmax(-1)
        probabilities = log_probabilities.exp()
        # 0 * -inf would be NaN.
        entropy = -(log_probabilities.clamp(min=_LOWEST) * probabilities).sum(-1, keepdim=True)
        cutoff = params.eta_cutoff[:, None]
        removed = probabilities < torch.minimum(cutoff, cutoff.sqrt() * (-entropy).exp())
        return logits.masked_fill(removed & (logits < logits.amax(-1, keepdim=True)), -torch.inf)
