"""Reads and checks a request's processor chain: its form, and whether requests may name its processors."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import orjson

from logitport.errors import InvalidArgument
from logitport.payload import holds_program
from logitport.shipping.request import name_processor

if TYPE_CHECKING:
    from logitport.shipping.request import ProcessorLike

KEY = "logitport"
VARIABLE = "LOGITPORT_REQUEST_PROCESSORS"

# A request's processors with their parameters, in execution order.
Chain: TypeAlias = "Sequence[tuple[ProcessorLike, Mapping[str, Any]]]"

_FORM = 'expected a list of [processor, parameters], such as [["disallowed_tokens", {"token_ids": [1]}]]'

_NOUNS = {
    "builtin": "a built-in",
    "registered": "a registered processor",
    "program": "a program",
    "shipped": "a shipped processor",
}
_DEFAULT = frozenset({"builtin", "registered"})
# The kind of a processor, by the field that names it.
_KINDS = {"builtin": "builtin", "name": "registered", "digest": "registered", "payload": "shipped"}


def is_chain(value: object) -> bool:
    """Return whether the value is a list of (processor, parameters) pairs."""
    return isinstance(value, list | tuple) and all(
        isinstance(entry, list | tuple) and len(entry) == 2 and isinstance(entry[1], Mapping) for entry in value
    )


def require_chain(value: Chain) -> Chain:
    """Return the value. Raises InvalidArgument if it is no list of (processor, parameters) pairs."""
    if is_chain(value):
        return value
    raise InvalidArgument(
        "processors: expected (processor, parameters) pairs, such as [('disallowed_tokens', {'token_ids': [1]})]"
    )


def chain_of(extra_args: Mapping[str, Any] | None, default: Chain = ()) -> Chain:
    """Return the (processor, parameters) pairs under "logitport", or the default if there is no such key.

    Args:
        extra_args: vLLM's `extra_args` (over HTTP `vllm_xargs`) or SGLang's `custom_params`; the value is a list of
            [processor, parameters], or the same as JSON text. Parameters are optional: ["name"] is ["name", {}].
        default: the chain of requests without the key.

    Raises:
        InvalidArgument: the value has neither form, or the operator does not permit requests to name one of these
            processors.
    """
    value = (extra_args or {}).get(KEY)
    if value is None:
        return default
    chain = read_chain(value, KEY)
    permitted = permitted_kinds()
    for index, (processor, _) in enumerate(chain):
        if not processor:
            continue  # refused later, by the check of names
        kind = "program" if holds_program(processor) else _KINDS[name_processor(processor).WhichOneof("by") or ""]
        if kind not in permitted:
            raise InvalidArgument(
                f"{KEY}[{index}] is {_NOUNS[kind]}, and requests to this engine may not name one; "
                f"{_advice(kind, permitted)}"
            )
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
            raise InvalidArgument(f"{where}: not JSON ({error}); {_FORM}") from error
    if not isinstance(value, list | tuple):
        raise InvalidArgument(f"{where}: got {type(value).__name__}; {_FORM}")
    return [_entry(entry, f"{where}[{index}]") for index, entry in enumerate(value)]


def _entry(entry: Any, where: str) -> tuple[str, Mapping[str, Any]]:
    if isinstance(entry, list | tuple) and len(entry) in {1, 2} and isinstance(entry[0], str):
        params = entry[1] if len(entry) == 2 else {}
        if isinstance(params, Mapping):
            try:
                entry[0].encode()
            except UnicodeEncodeError as error:
                raise InvalidArgument(f"{where}: the processor is not valid Unicode text: {error}") from None
            return entry[0], params
    raise InvalidArgument(f"{where}: {_FORM}")


def permitted_kinds() -> frozenset[str]:
    """Return the kinds of processors that requests may name, by LOGITPORT_REQUEST_PROCESSORS.

    Raises:
        InvalidArgument: the variable holds another word.
    """
    value = os.environ.get(VARIABLE)
    if not value:
        return _DEFAULT
    words = frozenset(word.strip() for word in value.split(","))
    if words == {"none"}:
        return frozenset()
    if not words <= _NOUNS.keys():
        raise InvalidArgument(
            f"{VARIABLE} is {value!r}; list some of builtin, registered, program and shipped, separated by commas, or "
            "write none"
        )
    return words


def _advice(kind: str, permitted: frozenset[str]) -> str:
    ask = f"ask the operator to add {kind!r} to {VARIABLE}"
    if kind in ("program", "shipped") and "registered" in permitted:
        return f"register it with the service (Client.register) and name it, or {ask}"
    allowed = [noun for one, noun in _NOUNS.items() if one in permitted and one != "shipped"]
    return f"name {' or '.join(allowed)}, or {ask}" if allowed else ask
