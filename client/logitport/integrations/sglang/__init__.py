"""logitport as a custom logit processor of SGLang.

A request names the hook by a string that contains a reference and no code, and its processors in `custom_params`:

    custom_logit_processor=RemoteLogitProcessor.to_str()
    sampling_params={"custom_params": {"logitport": '[["disallowed_tokens", {"token_ids": [1]}]]'}}

SGLang's scheduler imports this module when it resolves the reference. See docs/engines/sglang.md.
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
    """Processes the logits of requests that name processors, in the service at LOGITPORT_TARGET.

    SGLang creates one object per batch; all objects in a process share one connection. Only processing needs SGLang;
    `to_str` does not.
    """

    @classmethod
    def to_str(cls) -> str:
        """Return the value of a request's `custom_logit_processor`: a constant of some 150 characters without code."""
        return payload.refer(cls)

    def __call__(
        self, logits: torch.Tensor, custom_param_list: Sequence[Mapping[str, Any] | None] | None = None
    ) -> torch.Tensor:
        """Process one step. Never raises, because an exception would end SGLang: a failed request ends with its error.

        Args:
            logits: float[rows, vocab_size], edited in place.
            custom_param_list: each row's `custom_params`, with SGLang's request under "__req__".

        Returns:
            `logits`.
        """
        _hook().process(logits, custom_param_list or ())
        return logits


@functools.cache
def _hook() -> Any:
    from logitport.integrations.sglang.hook import Hook

    return Hook()
