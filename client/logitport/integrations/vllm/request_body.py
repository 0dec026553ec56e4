"""Checks the JSON of a request to vLLM: vLLM ignores unknown fields, also a chain outside of `vllm_xargs`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from logitport.errors import InvalidArgument
from logitport.integrations.common.chains import KEY
from logitport.integrations.common.request_keys import warn_if_near
from logitport.integrations.vllm.response_body import header
from logitport.system.variables import nearest

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from logitport.integrations.vllm.response_body import Message, Receive

# Longer bodies are not checked: the event loop would parse them twice.
MAX_BYTES = 1 << 20
_MAX_FIELDS = 64
# The field that vLLM copies into `extra_args`.
_FIELD = "vllm_xargs"
# Where clients of other engines and of vLLM's Python interface write a chain.
_WRAPPERS = ("extra_args", "extra_body", "custom_params", "sampling_params")
_ADVICE = f'write "{_FIELD}": {{"{KEY}": "[…]"}}, with the chain as JSON text'


async def checked(scope: MutableMapping[str, Any], receive: Receive) -> Receive:
    """Read and check a request's body, if it is JSON of at most `MAX_BYTES`.

    Args:
        scope: the scope of an HTTP request in ASGI.
        receive: receives the messages of its body.

    Returns:
        What receives the same body, its checked part as one message: a client may send a byte in each.

    Raises:
        InvalidArgument: the body has a chain where vLLM does not read it.
    """
    if not _is_json(scope):
        return receive
    body = bytearray()
    others: list[Message] = []  # the client has closed the connection
    more = True
    while more and len(body) <= MAX_BYTES:
        message = await receive()
        if message["type"] != "http.request":
            others.append(message)
            break
        body += message.get("body", b"")
        more = bool(message.get("more_body", False))
    if len(body) <= MAX_BYTES:
        check(body)
    messages: list[Message] = [*others, {"type": "http.request", "body": bytes(body), "more_body": more}]

    async def again() -> Message:
        return messages.pop() if messages else await receive()

    return again


def check(body: bytes | bytearray) -> None:
    """Refuse a chain outside of `vllm_xargs`, and log keys close to "logitport". Raises InvalidArgument."""
    try:
        fields = orjson.loads(body)
    except orjson.JSONDecodeError:
        return  # answered by vLLM
    if not isinstance(fields, dict):
        return
    path = _path_of_chain(fields)
    if path:
        raise InvalidArgument(f"the body has {path!r}, which vLLM does not read; {_ADVICE}")
    for name in list(fields)[:_MAX_FIELDS]:
        warn_if_near(name, "the body", _ADVICE)


def _path_of_chain(fields: dict[str, Any]) -> str:
    """Return the path of the first "logitport" that vLLM ignores; "" without one."""
    if KEY in fields:
        return KEY
    for name in list(fields)[:_MAX_FIELDS]:
        value = fields[name]
        if name == _FIELD or not isinstance(value, dict):
            continue
        if name in _WRAPPERS or nearest(name.lower(), [_FIELD]):
            inner = KEY if KEY in value else _path_in_field(value)
            if inner:
                return f"{name}.{inner}"
    return ""


def _path_in_field(fields: dict[str, Any]) -> str:
    value = fields.get(_FIELD)
    return f"{_FIELD}.{KEY}" if isinstance(value, dict) and KEY in value else ""


def _is_json(scope: MutableMapping[str, Any]) -> bool:
    """Return whether vLLM reads the body as JSON. Of several headers it reads the first."""
    return header(scope, b"content-type").partition(b";")[0].strip().lower() == b"application/json"
