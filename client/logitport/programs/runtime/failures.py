"""Why a row of a program fails."""

from __future__ import annotations

from logitport.errors import ProcessorFailed


def nan_error(name: str) -> ProcessorFailed:
    """The result has a NaN."""
    message = f"program {name} returned NaN in a row; return numbers, or -inf for ids not to be sampled"
    return ProcessorFailed(message, processor=name)


def unfit_error(name: str) -> ProcessorFailed:
    """A number was cast to int64 that it cannot hold."""
    message = f"program {name} casts a number to int64 that does not fit in it; limit the number first"
    return ProcessorFailed(message, processor=name)
