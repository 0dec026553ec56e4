"""The bars on a GPU: what each measured quantity must reach."""

from __future__ import annotations

from typing import NamedTuple


class Bar(NamedTuple):
    """A limit.

    Attributes:
        limit: in the unit of the quantity.
        at_least: whether the limit is the lowest value that meets the bar, instead of the highest.
    """

    limit: float
    at_least: bool = False

    def met_by(self, value: float) -> bool:
        """Whether a value meets the bar."""
        return value >= self.limit if self.at_least else value <= self.limit

    def __str__(self) -> str:
        return f"{'≥' if self.at_least else '≤'} {self.limit:.3g}"


# Names of quantities. A job records a quantity by its name, and the bar follows from it.
LISTS = "lists, GPU time"
MIX_TO_FLOOR = "the mix ÷ moving its bytes"
BITMASK_TO_XGRAMMAR = "bitmasks ÷ xgrammar's kernel"
BITMASK_TO_VLLM = "bitmasks ÷ vLLM's kernel"
HOST_TO_XGRAMMAR = "host time ÷ xgrammar's"
EXPOSED_4K = "exposed ÷ SGLang in process, 4k"
EXPOSED_32K = "exposed ÷ SGLang in process, 32k"
PROGRAM_TO_TORCH = "program in process ÷ torch's operator"
SERVER_TO_TORCH = "through the server, in place ÷ torch's operator"
GENERATION = "tokens a second ÷ without processors"
SAMPLING = "tokens a second ÷ SGLang's own processors"
CORRECT = "correct"  # 1.0 or 0.0

BARS = {
    LISTS: Bar(30.0),  # µs
    MIX_TO_FLOOR: Bar(1.3),
    BITMASK_TO_XGRAMMAR: Bar(1.0),
    BITMASK_TO_VLLM: Bar(1.0),
    HOST_TO_XGRAMMAR: Bar(1.5),
    EXPOSED_4K: Bar(1 / 50),
    EXPOSED_32K: Bar(1 / 200),
    PROGRAM_TO_TORCH: Bar(1.15),
    SERVER_TO_TORCH: Bar(2.0),
    GENERATION: Bar(0.99, at_least=True),
    SAMPLING: Bar(1.0, at_least=True),
    CORRECT: Bar(1.0, at_least=True),
}
