"""Reads a request's processor chain from the extra arguments that engines pass through."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import orjson

from logitport.errors import InvalidArgument
from logitport.integrations.common.permitted import require_permitted

if TYPE_CHECKING:
    from logitport.integrations.common.history_batch import Chain

KEY = "logitport"


def chain_of(extra_args: Mapping[str, Any] | None, default: Chain = ()) -> Chain:
    """Return the (processor, parameters) pairs under "logitport", or the default if there is no such key.

    Args:
        extra_args: vLLM's `extra_args` (over HTTP `vllm_xargs`) or SGLang's `custom_params`; the value is a list of
            [processor, parameters], or the same as JSON text. Parameters are optional: ["name"] is ["name", {}].
        default: the chain of requests without the key.

    Raises:
        InvalidArgument: the value has neither form.
        InvalidArgument: the operator does not permit requests to name one of these processors.
    """
    value = (extra_args or {}).get(KEY)
    if value is None:
        return default
    chain = read_chain(value, KEY)
    require_permitted([processor for processor, _ in chain], KEY)
    return chain


def read_chain(value: Any, where: str) -> list[tuple[str, Mapping[str, Any]]]:
    """Parse a list of [processor, parameters], or JSON text of one.

    Raises:
        InvalidArgument: the value has neither form; the message names `where`.
    """
    if isinstance(value, str):
        try:
            value = orjson.loads(value)
        except orjson.JSONDecodeError as error:
            raise InvalidArgument(f"{where}: not JSON ({error}); {_EXPECTED}") from error
    if not isinstance(value, list | tuple):
        raise InvalidArgument(f"{where}: got {type(value).__name__}; {_EXPECTED}")
    return [_entry(entry, where, place) for place, entry in enumerate(value)]


_EXPECTED = 'expected a list of [processor, parameters], such as [["disallowed_tokens", {"token_ids": [1]}]]'


def _entry(entry: Any, where: str, place: int) -> tuple[str, Mapping[str, Any]]:
    if isinstance(entry, (list, tuple)) and len(entry) in {1, 2} and isinstance(entry[0], str):
        params = entry[1] if len(entry) == 2 else {}
        if isinstance(params, Mapping):
            return entry[0], params
    raise InvalidArgument(f"{where}[{place}]: {_EXPECTED}")
