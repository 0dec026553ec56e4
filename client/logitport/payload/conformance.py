"""Whether a class is a processor."""

from __future__ import annotations

import inspect
from typing import Any


def why_no_processor(shipped: object) -> str:
    """What keeps `shipped` from being a class whose instances are called with (logits, custom_param_list); else ""."""
    if not isinstance(shipped, type):
        return f"not a class, but a {type(shipped).__qualname__}: {_short(shipped)}"
    call = next((vars(cls)["__call__"] for cls in shipped.__mro__ if "__call__" in vars(cls)), None)
    if call is None:
        return f"{shipped.__qualname__} has no __call__: derive it from CustomLogitProcessor"
    try:
        # Bound to no particular instance, for none may be made yet.
        signature = inspect.signature(call.__get__(object(), shipped), follow_wrapped=False)
    except (AttributeError, ValueError):  # not a descriptor, or written in C: it cannot be told
        return ""
    try:
        signature.bind("logits", "custom_param_list")
    except TypeError as error:
        return f"wrong arity of __call__: {error}: it takes {signature}, and is called with (logits, custom_param_list)"
    return ""


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
