"""`presence_penalty` and `frequency_penalty`: lower the logits of ids that were generated before.

Both are edits: what they subtract follows from the generated ids alone, so it is computed while the model runs. The
repetition penalty is not one: it multiplies or divides by the sign of each logit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from logitport.processors import EditProcessor
from logitport.programs.request_tokens import RequestTokens
from logitport_builtins.params import Params

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from logitport.core.edits import RowEdits
    from logitport.processors import EditRequest

_LIMIT = 2.0  # of OpenAI's API, vLLM and SGLang


class _State(NamedTuple):
    """The penalty of a request, as float32, and the counts of its ids."""

    penalty: np.float32
    tokens: RequestTokens


class PresencePenalty(EditProcessor):
    """Subtracts a number from the logit of each id that was generated before, however often.

    Parameters:
        presence_penalty: a number in [-2, 2]; a negative one favors ids that were generated before.

    The ids of the prompt do not count, and ids outside the vocabulary are ignored. This is the behavior of vLLM 0.33
    and SGLang 0.5.23, with the same bits. If a request has several processors with a BIAS for an id, their sum is added
    and rounded once, where the engines round after each.
    """

    builtin_name = "presence_penalty"

    @classmethod
    def validate_params(cls, params: Mapping[str, Any]) -> None:
        """Raises InvalidParams."""
        cls.penalty(params)

    @classmethod
    def penalty(cls, params: Mapping[str, Any]) -> float:
        """Read the penalty. Raises InvalidParams."""
        return Params(cls.builtin_name, params, (cls.builtin_name,)).number(cls.builtin_name, -_LIMIT, _LIMIT)

    def start(self, request: EditRequest) -> None:
        """Read the penalty; the ids are counted at the first step. Raises InvalidParams."""
        request.state = _State(np.float32(self.penalty(request.params)), RequestTokens(request.history))

    def rewind(self, request: EditRequest) -> None:
        """Subtract the counts of the ids that were cut off."""
        request.state.tokens.rewound()

    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        """BIAS of the generated ids."""
        penalty, tokens = request.state
        if not penalty:
            return
        ids, counts = tokens.counted(generated=True)
        inside = (ids >= 0) & (ids < request.vocab_size)
        # Copies: the counts change before the step ends if draft tokens follow.
        edits.bias(ids[inside], self.values(penalty, counts[inside]))

    @staticmethod
    def values(penalty: np.float32, counts: NDArray[np.int64]) -> NDArray[np.float32]:
        """What to add for ids with these counts, int64[n], all at least 1: float32[n]."""
        return np.full(len(counts), -penalty, np.float32)


class FrequencyPenalty(PresencePenalty):
    """Subtracts a number from the logit of each id, times how often the id was generated before.

    Parameters:
        frequency_penalty: a number in [-2, 2]; a negative one favors ids that were generated often.

    The ids of the prompt do not count, and ids outside the vocabulary are ignored. For float32 logits vLLM 0.33 has the
    same bits. SGLang 0.5.23 adds the penalty up, token by token, and so rounds more often.
    """

    builtin_name = "frequency_penalty"

    @staticmethod
    def values(penalty: np.float32, counts: NDArray[np.int64]) -> NDArray[np.float32]:
        """What to add for ids with these counts, int64[n]: float32[n]."""
        return -penalty * counts.astype(np.float32)
