"""Checks the keys next to "logitport" in a request's parameters: a misspelt one would leave the request unprocessed."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Any

from logitport.errors import InvalidArgument
from logitport.integrations.common import tenants
from logitport.integrations.common.chains import KEY
from logitport.system.variables import nearest

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

VARIABLE = "LOGITPORT_REQUEST_KEYS"

_log = logging.getLogger(__name__)

# A request may have any number of keys, and clients may send new ones without end.
_MAX_COMPARED = 64
_MAX_WARNINGS = 64
# The keys that this process has warned of.
_warned: set[str] = set()


def check_keys(params: Mapping[str, Any] | None, where: str, engine_keys: Collection[str] = ()) -> None:
    """Refuse keys that the operator does not permit. If any is permitted, log those close to "logitport", each once.

    Args:
        params: vLLM's `extra_args` or SGLang's `custom_params`.
        where: the name of this field, for messages.
        engine_keys: keys that the engine itself reads or writes there.

    Raises:
        InvalidArgument: LOGITPORT_REQUEST_KEYS does not list one of the keys; or the variable is invalid.
    """
    known = {KEY, tenants.KEY, *engine_keys}
    unknown = [str(key) for key in params or () if key not in known]
    permitted = permitted_keys()
    if permitted is None:
        for key in unknown[:_MAX_COMPARED]:
            warn_if_near(key, where, f"write {KEY!r} if that is what was meant, or set {VARIABLE} to refuse other keys")
        return
    for key in unknown:
        if key not in permitted:
            near = nearest(key.lower(), [KEY, *engine_keys, *permitted])
            raise InvalidArgument(
                f"{where} has the key {key!r:.80}, and requests to this engine may not have it; "
                f"{f'write {near!r} if that is what was meant' if near else 'leave it out'}, or ask the operator to "
                f"add it to {VARIABLE}"
            )


def warn_if_near(key: str, where: str, advice: str) -> None:
    """Log a key that is close to "logitport", once in this process. Not for that key itself.

    Args:
        key: the key.
        where: the object that has it, for the message.
        advice: what to do.
    """
    if key not in _warned and len(_warned) < _MAX_WARNINGS and nearest(key.lower(), [KEY]):
        _warned.add(key)
        _log.warning(
            "a request has the key %.80r in %s, which logitport does not read, so it names no processor; %s",
            key,
            where,
            advice,
        )


def permitted_keys() -> frozenset[str] | None:
    """Return the keys that requests may have next to logitport's, by LOGITPORT_REQUEST_KEYS; None for any key.

    Raises:
        InvalidArgument: the variable lists an empty key, or "any" or "none" among others.
    """
    value = os.environ.get(VARIABLE) or "any"
    keys = frozenset(key.strip() for key in value.split(","))
    if keys in ({"any"}, {"none"}):
        return None if keys == {"any"} else frozenset()
    if keys & {"", "any", "none"}:
        raise InvalidArgument(f"{VARIABLE} is {value!r}; list keys, separated by commas, or write any or none alone")
    return keys
