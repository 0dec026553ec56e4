"""The outcome of one row, and the comparison of two."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from logitport.errors import StateLost

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from logitport.errors import LogitportError

# Parts of messages of the server and the SDK.
_NAN = ("returned NaN", "bias: values must be finite")
_OUTSIDE = ("; return the logits, a floating-point tensor", "BITMASK of", ": ids must lie in [0, ")


@dataclass(frozen=True)
class Outcome:
    """A row after its chain, or the error of its request.

    Attributes:
        logits: float32[vocab_size]; None after an error.
        error: the error, or None.
        admitted: False if the admission failed.
        output_length: number of ids of the output at this step.
        too_slow: what took longer than its limit; "" if nothing did. There are no logits then.
    """

    logits: NDArray[np.float32] | None = None
    error: LogitportError | None = None
    admitted: bool = True
    output_length: int = 0
    too_slow: str = ""

    @property
    def failed(self) -> bool:
        """Whether the processor has raised an exception that is no other law's concern."""
        other = self.state_lost or self.is_nan or self.is_outside or self.too_slow
        return self.error is not None and not other

    @property
    def state_lost(self) -> bool:
        """Whether the request ended because the processor keeps state that does not follow from the history."""
        return isinstance(self.error, StateLost)

    @property
    def is_nan(self) -> bool:
        """Whether the processor has returned NaN."""
        return self._says(*_NAN)

    @property
    def is_outside(self) -> bool:
        """Whether the processor has edited ids outside the vocabulary, or returned logits of another shape."""
        return self._says(*_OUTSIDE)

    def _says(self, *parts: str) -> bool:
        return self.error is not None and any(part in self.error.message for part in parts)

    def __str__(self) -> str:
        if self.error is None:
            return self.too_slow or "logits"
        return f"{type(self.error).__name__}: {self.error}"


def difference(first: Outcome, second: Outcome, names: tuple[str, str], tolerance: float) -> str:
    """Describe the difference of two outcomes, or "".

    Two finite logits may differ by the tolerance, absolutely and relatively.
    """
    if (first.error is not None and second.error is not None) or first.too_slow or second.too_slow:
        return ""
    if first.logits is None or second.logits is None:
        return f"{names[0]}: {first}; {names[1]}: {second}"
    with np.errstate(invalid="ignore"):
        close = np.isclose(first.logits, second.logits, rtol=tolerance, atol=tolerance)
    differing = np.flatnonzero(~close)
    if not differing.size:
        return ""
    token_id = int(differing[0])
    more = f" ({differing.size} ids differ)" if differing.size > 1 else ""
    values = [f"{name} {row[token_id]:g}" for name, row in zip(names, (first.logits, second.logits), strict=True)]
    return f"the logit of id {token_id} is {values[0]}, and {values[1]}{more}"
