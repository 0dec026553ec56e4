"""`logit_bias`: numbers that are added to the logits of some ids."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from logitport.stateful import StatefulEditProcessor
from logitport_builtins.constant_edits import BiasList
from logitport_builtins.params import Params, check_in_vocabulary

if TYPE_CHECKING:
    from collections.abc import Mapping

    from logitport.processors import EditRequest

_LIMIT = 100.0  # of OpenAI's API


class LogitBias(StatefulEditProcessor):
    """Adds a number to the logits of some ids at every step.

    An edit, because it reads no logits.

    Parameters:
        logit_bias: an object with a number in [-100, 100] for each token id. The ids are integers or, as in JSON,
            strings of digits.

    With float32 logits the result has the bits of vLLM 0.33's, which clips larger numbers to these limits. To forbid an
    id, use `disallowed_tokens`.
    """

    builtin_name = "logit_bias"
    shares_states = True

    @classmethod
    def validate_params(cls, params: Mapping[str, Any]) -> None:
        """Raises InvalidArgument."""
        cls.biases(params)

    @classmethod
    def biases(cls, params: Mapping[str, Any]) -> dict[int, float]:
        """The number to add for each id. Raises InvalidArgument."""
        return Params("logit_bias", params, ("logit_bias",)).token_numbers("logit_bias", -_LIMIT, _LIMIT)

    def start(self, request: EditRequest) -> None:
        """Read the object; the edits are the same at every step. Raises InvalidArgument."""
        biases = self.biases(request.params)
        ids = np.array(sorted(biases), np.int32)
        check_in_vocabulary("logit_bias", ids, request.vocab_size)
        request.state = BiasList(ids, [biases[token_id] for token_id in ids.tolist()])
