"""Keeps SGLang from unpickling what requests send: a request's string must name logitport's hook, or is refused."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from logitport.errors import PayloadError
from logitport.integrations.sglang import RemoteLogitProcessor
from logitport.integrations.sglang.requests import end, request_of
from logitport.payload.envelope import parse
from logitport.payload.pickle_reader import Global, read

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch

REFUSED = (
    "this server accepts one custom_logit_processor, logitport's: send RemoteLogitProcessor.to_str() of "
    'logitport.integrations.sglang, and name or ship processors in custom_params["logitport"]'
)

_HOOK = Global(RemoteLogitProcessor.__module__, RemoteLogitProcessor.__qualname__)

# Several times the length of a reference, and cheap to parse.
_MAX_LENGTH = 1000


def install() -> None:
    """Install the guard in this process: SGLang calls `from_str` wherever it turns a string into a processor."""
    from sglang.srt.sampling.custom_logit_processor import CustomLogitProcessor

    CustomLogitProcessor.from_str = classmethod(_from_str)


def installed() -> bool:
    """Return whether the guard is installed in this process."""
    from sglang.srt.sampling.custom_logit_processor import CustomLogitProcessor

    return getattr(CustomLogitProcessor.from_str, "__func__", None) is _from_str


def names_hook(serialized: object) -> bool:
    """Return whether this is a string that refers to `RemoteLogitProcessor` and to nothing else. Unpickles nothing."""
    return isinstance(serialized, str) and len(serialized) <= _MAX_LENGTH and _names_hook(serialized)


@functools.lru_cache(maxsize=64)
def _names_hook(serialized: str) -> bool:
    try:
        contents = read(parse(serialized).data)
    except PayloadError:
        return False
    return contents.globals == {_HOOK} and not contents.codes and not contents.marshalled


class Refusal:
    """Replaces a refused processor and ends its requests. Neither `from_str` nor this may raise."""

    def __call__(
        self, logits: torch.Tensor, custom_param_list: Sequence[Mapping[str, Any] | None] | None = None
    ) -> torch.Tensor:
        """End every request of the batch; the logits, float[rows, vocab_size], are not modified."""
        for params in custom_param_list or ():
            req = request_of(params)
            try:
                ended = req is None or req.finished()
            except AttributeError:  # of another version of SGLang
                ended = False
            if not ended:
                end(req, PayloadError(REFUSED, code=PayloadError.NOT_ALLOWED))
        return logits


def _from_str(_cls: type, json_str: str) -> RemoteLogitProcessor | Refusal:
    return RemoteLogitProcessor() if names_hook(json_str) else Refusal()
