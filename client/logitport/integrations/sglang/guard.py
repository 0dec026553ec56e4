"""What SGLang unpickles: with the guard up, nothing; a request's string names logitport's hook, or is refused."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from logitport.errors import MalformedPayload, PayloadNotAllowed
from logitport.integrations.sglang import RemoteLogitProcessor
from logitport.integrations.sglang.requests import end, request_of
from logitport.payload.envelope import parse
from logitport.payload.pickle_reader import Global, read

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch

REFUSED = (
    "this server takes one custom_logit_processor, logitport's: send RemoteLogitProcessor.to_str() of "
    'logitport.integrations.sglang, and name or ship processors in custom_params["logitport"]'
)

_HOOK = Global(RemoteLogitProcessor.__module__, RemoteLogitProcessor.__qualname__)

# Far more than a reference takes, and little to read.
_LONGEST = 1000


def install() -> None:
    """Put the guard up in this process; SGLang calls `from_str` wherever it turns a string into a processor."""
    from sglang.srt.sampling.custom_logit_processor import CustomLogitProcessor

    CustomLogitProcessor.from_str = classmethod(_from_str)


def installed() -> bool:
    """Whether the guard is up in this process."""
    from sglang.srt.sampling.custom_logit_processor import CustomLogitProcessor

    return getattr(CustomLogitProcessor.from_str, "__func__", None) is _from_str


def names_hook(serialized: object) -> bool:
    """Whether this is a string that refers to `RemoteLogitProcessor`, and nothing else. Nothing is unpickled."""
    return isinstance(serialized, str) and len(serialized) <= _LONGEST and _names_hook(serialized)


@functools.lru_cache(maxsize=64)
def _names_hook(serialized: str) -> bool:
    try:
        contents = read(parse(serialized).data)
    except MalformedPayload:
        return False
    return contents.globals == {_HOOK} and not contents.codes and not contents.marshalled


class Refusal:
    """In the place of a processor that is refused: ends its requests. `from_str` itself must not raise, nor this."""

    def __call__(
        self, logits: torch.Tensor, custom_param_list: Sequence[Mapping[str, Any] | None] | None = None
    ) -> torch.Tensor:
        """End every request of the batch; the logits, float[rows, vocab_size], stay as they are."""
        for params in custom_param_list or ():
            req = request_of(params)
            if req is not None and not req.finished():
                end(req, PayloadNotAllowed(REFUSED))
        return logits


def _from_str(_cls: type, json_str: str) -> RemoteLogitProcessor | Refusal:
    return RemoteLogitProcessor() if names_hook(json_str) else Refusal()
