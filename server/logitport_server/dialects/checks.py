"""Whether a processor checks the parameters of its requests."""

from __future__ import annotations

from logitport.processors import CustomLogitProcessor


def overrides_check(processor: object) -> bool:
    """Return whether the processor has a `validate_params` other than that of the base class, which checks nothing."""
    check = getattr(processor, "validate_params", None)
    return check is not None and not is_method(check, CustomLogitProcessor.validate_params)


def is_method(method: object, default: object) -> bool:
    """Return whether a method is this method of a base class, and not an override."""
    function = getattr(default, "__func__", default)
    return getattr(method, "__func__", None) is function
