"""`presence_penalty` and `frequency_penalty`: lower the logits of ids that were generated before.

Both are edits: what they subtract follows from the generated ids alone, so it is computed while the model runs. The
repetition penalty is not one: it multiplies or divides by the sign of each logit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from logitport.core.compiled import core
from logitport.stateful import HistoryState, StatefulEditProcessor
from logitport_builtins.params import Params
from logitport_programs.request_tokens import RequestTokens

if TYPE_CHECKING:
    from collections.abc import Mapping

    from logitport.core.edits import RowEdits
    from logitport.core.history import History
    from logitport.processors import EditRequest

_LIMIT = 2.0  # of OpenAI's API, vLLM and SGLang


class PythonPenalty(HistoryState):
    """BIAS of the generated ids: less by `penalty`, as float32, once or, if `per_occurrence`, as often as generated."""

    __slots__ = ("_penalty", "_per_occurrence", "_tokens")

    def __init__(self, history: History, penalty: float, per_occurrence: bool) -> None:
        self._penalty = np.float32(penalty)
        self._per_occurrence = per_occurrence
        self._tokens = RequestTokens(history)

    def rewind(self, history: History) -> None:  # noqa: ARG002 - it is the history of `_tokens`
        self._tokens.rewound()

    def edit(self, history: History, vocab_size: int, edits: RowEdits) -> None:  # noqa: ARG002
        if not self._penalty:
            return
        ids, counts = self._tokens.counted(generated=True)
        inside = (ids >= 0) & (ids < vocab_size)
        # Copies: the counts change before the step ends if draft tokens follow.
        if self._per_occurrence:
            edits.bias(ids[inside], -self._penalty * counts[inside].astype(np.float32))
        else:
            edits.bias(ids[inside], -self._penalty)


Penalty = PythonPenalty if core is None else core.Penalty


class PresencePenalty(StatefulEditProcessor):
    """Subtracts a number from the logit of each id that was generated before, however often.

    Parameters:
        presence_penalty: a number in [-2, 2]; a negative one favors ids that were generated before.

    The ids of the prompt do not count, and ids outside the vocabulary are ignored. This is the behavior of vLLM 0.33
    and SGLang 0.5.23, with the same bits. If a request has several processors with a BIAS for an id, their sum is added
    and rounded once, where the engines round after each.
    """

    builtin_name = "presence_penalty"
    per_occurrence: ClassVar[bool] = False
    bytes_per_output_id = 200 if core is None else 72

    @classmethod
    def validate_params(cls, params: Mapping[str, Any]) -> None:
        """Raises InvalidArgument."""
        cls.penalty(params)

    @classmethod
    def penalty(cls, params: Mapping[str, Any]) -> float:
        """Read the penalty. Raises InvalidArgument."""
        return Params(cls.builtin_name, params, (cls.builtin_name,)).number(cls.builtin_name, -_LIMIT, _LIMIT)

    def start(self, request: EditRequest) -> None:
        """Read the penalty; the ids are counted at the first step. Raises InvalidArgument."""
        request.state = Penalty(request.history, self.penalty(request.params), self.per_occurrence)


class FrequencyPenalty(PresencePenalty):
    """Subtracts a number from the logit of each id, times how often the id was generated before.

    Parameters:
        frequency_penalty: a number in [-2, 2]; a negative one favors ids that were generated often.

    The ids of the prompt do not count, and ids outside the vocabulary are ignored. For float32 logits vLLM 0.33 has the
    same bits. SGLang 0.5.23 adds the penalty up, token by token, and so rounds more often.
    """

    builtin_name = "frequency_penalty"
    per_occurrence = True
