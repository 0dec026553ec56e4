"""What a request of somebody else's engine asks of logitport, in the extra arguments that such engines pass through."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import orjson

from logitport.errors import InvalidParams

if TYPE_CHECKING:
    from logitport.integrations.common.history_batch import Chain

KEY = "logitport"


def chain_of(extra_args: Mapping[str, Any] | None, default: Chain = ()) -> Chain:
    """The (processor, parameters) pairs under "logitport", or the default where there is no such key.

    Args:
        extra_args: vLLM's `extra_args` (over HTTP `vllm_xargs`), SGLang's `custom_params`; the value is a list of
            [processor, parameters], or the same as JSON text. Parameters may be left out: ["name"] is ["name", {}].
        default: for requests that ask nothing.

    Raises:
        InvalidParams: the value is neither.
    """
    asked = (extra_args or {}).get(KEY)
    return default if asked is None else read_chain(asked, KEY)


def read_chain(asked: Any, where: str) -> Chain:
    """The pairs in a list of [processor, parameters], or in JSON text of one. Raises InvalidParams; names `where`."""
    if isinstance(asked, str):
        try:
            asked = orjson.loads(asked)
        except orjson.JSONDecodeError as error:
            raise InvalidParams(f"{where}: not JSON ({error}); {_WANTED}") from error
    if not isinstance(asked, list | tuple):
        raise InvalidParams(f"{where}: {type(asked).__name__}; {_WANTED}")
    return [_holder(holder, f"{where}[{place}]") for place, holder in enumerate(asked)]


_WANTED = 'a list of [processor, parameters] is wanted, such as [["disallowed_tokens", {"token_ids": [1]}]]'


def _holder(holder: Any, where: str) -> tuple[str, Mapping[str, Any]]:
    if isinstance(holder, list | tuple) and len(holder) in {1, 2} and isinstance(holder[0], str):
        params = holder[1] if len(holder) == 2 else {}
        if isinstance(params, Mapping):
            return holder[0], params
    raise InvalidParams(f"{where}: {_WANTED}")
