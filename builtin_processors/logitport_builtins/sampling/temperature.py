"""`temperature`: divides the logits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from logitport_programs.authoring.declarations import Float
from logitport_programs.authoring.processor import TensorProcessor

if TYPE_CHECKING:
    import torch

    from logitport_programs.authoring.tensor_history import TensorHistory

_GREEDY_BELOW = 1e-5  # as in vLLM


class Temperature(TensorProcessor):
    """Divides the logits by a temperature.

    Parameters:
        temperature: a number of at least 0. Below 1e-5, only the id with the highest logit remains, the first one of
            equal ones: the engine then samples greedily at any temperature of its own.

    The quotients equal vLLM 0.33's, and those by transformers 5.23's `TemperatureLogitsWarper`, which refuses 0.
    """

    builtin_name = "temperature"
    params: ClassVar = {"temperature": Float(ge=0)}

    def process(self, logits: torch.Tensor, params: Any, history: TensorHistory) -> torch.Tensor:  # noqa: ARG002
        """Divide, and deny all ids but the best one in greedy rows."""
        import torch

        greedy = (params.temperature < _GREEDY_BELOW)[:, None]
        divisor = torch.where(greedy, 1.0, params.temperature[:, None])
        best = logits.argmax(-1, keepdim=True)
        scaled = torch.where(greedy, -torch.inf, logits / divisor)
        # Writing one element of each row is faster than comparing all ids with the best one.
        return scaled.scatter(-1, best, logits.gather(-1, best) / divisor)
