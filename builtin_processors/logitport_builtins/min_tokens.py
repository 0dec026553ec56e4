"""`min_tokens`: no end of the sequence before so many generated ids."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from logitport.errors import InvalidArgument
from logitport.stateful import StatefulEditProcessor
from logitport_builtins.constant_edits import TokenList
from logitport_builtins.params import Params, check_in_vocabulary

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from logitport.processors import EditRequest

_MAX_COUNT = 2**31  # no history reaches it


class MinTokens(StatefulEditProcessor):
    """Denies the ids that end a sequence until enough ids have been generated.

    An edit, because the number of ids decides.

    Parameters:
        min_tokens: how many ids are generated at least, 0 or more.
        stop_token_ids: optional list of ids that also end the sequence, as in the engine's own parameters.

    The ids that end a sequence are `stop_token_ids` and the session's `eos_token_ids`. The rule is as in vLLM 0.33's
    `min_tokens`, SGLang 0.5.23's `min_new_tokens` and transformers' `MinNewTokensLengthLogitsProcessor`.
    """

    builtin_name = "min_tokens"
    only_denies = True

    @classmethod
    def validate_params(cls, params: Mapping[str, Any]) -> None:
        """Raises InvalidArgument."""
        cls.read(params)

    @classmethod
    def read(cls, params: Mapping[str, Any]) -> tuple[int, NDArray[np.int32]]:
        """The number of ids, and `stop_token_ids`, int32[n]. Raises InvalidArgument."""
        given = Params("min_tokens", params, ("min_tokens", "stop_token_ids"))
        stop_ids = given.token_ids("stop_token_ids") if "stop_token_ids" in given else np.empty(0, np.int32)
        return given.integer("min_tokens", minimum=0), stop_ids

    def start(self, request: EditRequest) -> None:
        """Collect the ids to deny.

        Raises:
            InvalidArgument: the parameters cannot be used, or no id that ends a sequence is known.
            InvalidArgument: an id of the parameters is outside the vocabulary.
        """
        count, stop_ids = self.read(request.params)
        check_in_vocabulary("min_tokens", stop_ids, request.vocab_size)
        ending = {*stop_ids.tolist(), *(one for one in request.eos_token_ids if one < request.vocab_size)}
        if count and not ending:
            raise InvalidArgument(
                "min_tokens: no id that ends a sequence is known: set stop_token_ids, or open the session with "
                "eos_token_ids"
            )
        request.state = TokenList(np.array(sorted(ending), np.int32), min(count, _MAX_COUNT))
