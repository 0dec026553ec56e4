"""The operator's choice of what requests may name: built-ins, registered processors, programs, shipped code."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from logitport.errors import InvalidArgument
from logitport.payload import holds_program
from logitport.request import name_processor

if TYPE_CHECKING:
    from collections.abc import Sequence

VARIABLE = "LOGITPORT_REQUEST_PROCESSORS"
BUILTIN, REGISTERED, PROGRAM, SHIPPED, NONE = "builtin", "registered", "program", "shipped", "none"

_DEFAULT = frozenset({BUILTIN, REGISTERED})
_ALL = frozenset({BUILTIN, REGISTERED, PROGRAM, SHIPPED})
_KINDS = {"builtin": BUILTIN, "name": REGISTERED, "digest": REGISTERED, "payload": SHIPPED}
_NOUNS = {
    BUILTIN: "a built-in",
    REGISTERED: "a registered processor",
    PROGRAM: "a program",
    SHIPPED: "a shipped processor",
}


def permitted_kinds() -> frozenset[str]:
    """Return the kinds of processors that requests may name: LOGITPORT_REQUEST_PROCESSORS, by default the first two.

    Raises:
        InvalidArgument: the variable holds another word.
    """
    value = os.environ.get(VARIABLE)
    if not value:
        return _DEFAULT
    words = frozenset(word.strip() for word in value.split(","))
    if words == {NONE}:
        return frozenset()
    if not words <= _ALL:
        raise InvalidArgument(
            f"{VARIABLE} is {value!r}; list some of builtin, registered, program and shipped, separated by commas, or "
            "write none"
        )
    return words


def require_permitted(processors: Sequence[str], where: str) -> None:
    """Check the processors of a chain that a request names.

    Raises:
        InvalidArgument: the operator does not permit one of them; the message names its place and what to do.
    """
    permitted = permitted_kinds()
    for place, processor in enumerate(processors):
        if not processor:
            continue  # refused later, by the check of names
        kind = PROGRAM if holds_program(processor) else _KINDS[name_processor(processor).WhichOneof("by")]
        if kind not in permitted:
            raise InvalidArgument(
                f"{where}[{place}] is {_NOUNS[kind]}, and requests to this engine may not name one; "
                f"{_advice(kind, permitted)}"
            )


def _advice(kind: str, permitted: frozenset[str]) -> str:
    allowed = [_NOUNS[one] for one in (BUILTIN, REGISTERED, PROGRAM) if one in permitted]
    register = (
        "register it with the service (Client.register) and name it, or "
        if kind in (PROGRAM, SHIPPED) and REGISTERED in permitted
        else f"name {' or '.join(allowed)}, or "
        if allowed
        else ""
    )
    return f"{register}ask the operator to add {kind!r} to {VARIABLE}"
