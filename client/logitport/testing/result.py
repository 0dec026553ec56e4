"""The result of `simulate`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from logitport.testing.view.notebook import notebook

if TYPE_CHECKING:
    from collections.abc import Mapping

    from logitport.testing.records import Ending, StepRecord


@dataclass(frozen=True, eq=False)
class Simulation:
    """A chain on one request, step by step.

    Attributes:
        prompt_token_ids: the prompt.
        output_token_ids: the ids that were chosen.
        steps: one record for each step.
        ended: why it ended.
        vocab_size: width of the logits; 0 without steps.
        chain: (name, parameters) of each processor.
        texts: the text of each id of prompt, output and records, where the model has texts.
    """

    prompt_token_ids: tuple[int, ...]
    output_token_ids: tuple[int, ...]
    steps: tuple[StepRecord, ...]
    ended: Ending
    vocab_size: int
    chain: tuple[tuple[str, Mapping[str, Any]], ...]
    texts: Mapping[int, str] = field(default_factory=dict)

    def to_json(self, max_ids: int | None = 100) -> dict[str, Any]:
        """Convert to JSON data: dicts, lists, numbers, text and None.

        Args:
            max_ids: length at which lists of ids are cut; their true length is in `counts`. None keeps all ids.
        """
        return {
            "prompt_token_ids": list(self.prompt_token_ids),
            "output_token_ids": list(self.output_token_ids),
            "steps": [step.to_json(max_ids) for step in self.steps],
            "ended": self.ended,
            "vocab_size": self.vocab_size,
            "chain": [{"processor": name, "params": dict(params)} for name, params in self.chain],
        }

    def _repr_html_(self) -> str:
        """The view in notebooks: HTML and SVG, without scripts and without other files."""
        return notebook(self.prompt_token_ids, self.steps, [name for name, _ in self.chain], self.texts)
