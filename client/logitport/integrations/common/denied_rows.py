"""The error for a row without any id, the same in all hooks."""

from __future__ import annotations

from logitport.errors import InvalidArgument


def all_denied(engine: str, request: str = "") -> InvalidArgument:
    """Make the error for a request with processors that have denied every id.

    Not ProcessorFailed: each processor did what its parameters state, so the caller of the engine can act.

    Args:
        engine: samples an arbitrary id then.
        request: names the request, if its caller does not know which one it is.
    """
    return InvalidArgument(
        f"{request}{': ' if request else ''}its processors deny every id, so {engine} would sample an arbitrary one; "
        "change their parameters"
    )
