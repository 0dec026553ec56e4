"""`disallowed_tokens`: ids that are never sampled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from logitport.stateful import StatefulEditProcessor
from logitport_builtins.constant_edits import TokenList
from logitport_builtins.params import Params, check_in_vocabulary

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import NDArray

    from logitport.processors import EditRequest


class DisallowedTokens(StatefulEditProcessor):
    """Denies a list of ids at every step. Each request has its own list.

    Parameters:
        token_ids: list of token ids, 0 or more; may be empty.

    Differences from SGLang 0.5.23's `DisallowedTokensLogitsProcessor`: SGLang's asserts that all requests of a batch
    have the same list, and counts a negative id from the end of the vocabulary.
    """

    builtin_name = "disallowed_tokens"
    only_denies = True
    shares_states = True

    @classmethod
    def validate_params(cls, params: Mapping[str, Any]) -> None:
        """Raises InvalidArgument."""
        cls.token_ids(params)

    @classmethod
    def token_ids(cls, params: Mapping[str, Any]) -> NDArray[np.int32]:
        """The ids to deny, int32[n], read-only. Raises InvalidArgument."""
        return Params("disallowed_tokens", params, ("token_ids",)).token_ids("token_ids")

    def start(self, request: EditRequest) -> None:
        """Read the list; the edits are the same at every step. Raises InvalidArgument."""
        token_ids = self.token_ids(request.params)
        check_in_vocabulary("disallowed_tokens", token_ids, request.vocab_size)
        request.state = TokenList(token_ids)
