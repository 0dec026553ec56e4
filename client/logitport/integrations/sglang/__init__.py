"""logitport as a custom logit processor of SGLang.

A request names it by a string that holds a reference and no code, and its processors beside that:

    custom_logit_processor=RemoteLogitProcessor.to_str()
    sampling_params={"custom_params": {"logitport": '[["disallowed_tokens", {"token_ids": [1]}]]'}}

SGLang's scheduler imports this module when it follows the reference. See docs/engines/sglang.md.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from logitport import payload

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch

__all__ = ["RemoteLogitProcessor"]


class RemoteLogitProcessor:
    """Has the service that LOGITPORT_TARGET names process the logits of the requests that ask for it.

    SGLang makes one for each batch; all of a process share one connection. It needs no SGLang where it only makes the
    string.
    """

    @classmethod
    def to_str(cls) -> str:
        """What a request gives as `custom_logit_processor`: always the same, some 150 characters with no code."""
        return payload.refer(cls)

    def __call__(
        self, logits: torch.Tensor, custom_param_list: Sequence[Mapping[str, Any] | None] | None = None
    ) -> torch.Tensor:
        """Process one step. Never raises, for that would end SGLang: a request that fails is ended with its error.

        Args:
            logits: float[rows, vocab_size], edited in place.
            custom_param_list: a row's `custom_params`, with SGLang's request under "__req__".

        Returns:
            `logits`.
        """
        _hook().process(logits, custom_param_list or ())
        return logits


@functools.cache
def _hook() -> Any:
    from logitport.integrations.sglang.hook import Hook

    return Hook()
