"""The result of `simulate`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from logitport_testing.view.notebook import notebook

if TYPE_CHECKING:
    from collections.abc import Mapping

    from logitport_testing.step_records.step_record import Ending, StepRecord


@dataclass(frozen=True, eq=False)
class Simulation:
    """A chain on one request, step by step.

    Attributes:
        prompt_token_ids: the prompt.
        output_token_ids: the ids that were chosen.
        steps: one record for each step.
        ended: why it ended: "length", all steps are done; "eos", an id that ends a sequence was chosen;
            "nothing_allowed", all ids are denied.
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

    @property
    def ended_because(self) -> str:
        """The cause of its end, in words: with the processor that denied the last ids, if the chain allowed none."""
        if self.ended == "length":
            return "all steps are done"
        last = self.steps[-1]
        if self.ended == "eos":
            return f"id {last.token_id} ends the sequence"
        if not last.raw.allowed:
            return f"all ids are denied in step {last.index}, by the model's logits"
        denying = [one.processor for one in last.processors if one.before.allowed and not one.after.allowed]
        return f"all ids are denied in step {last.index}" + (f", after {denying[-1]}" if denying else "")

    def __repr__(self) -> str:
        names = ", ".join(name for name, _ in self.chain)
        return (
            f"<Simulation of [{names:.200}]: {len(self.prompt_token_ids)} prompt ids, {len(self.steps)} steps, "
            f"{len(self.output_token_ids)} output ids; ended={self.ended!r}: {self.ended_because}>"
        )

    def to_json(self, max_ids: int | None = 100) -> dict[str, Any]:
        """Convert to JSON data: dicts, lists, numbers, text and None.

        Args:
            max_ids: lists of ids are cut at this length; their true length is in `counts`. None keeps all ids.
        """
        return {
            "prompt_token_ids": list(self.prompt_token_ids),
            "output_token_ids": list(self.output_token_ids),
            "steps": [step.to_json(max_ids) for step in self.steps],
            "ended": self.ended,
            "ended_because": self.ended_because,
            "vocab_size": self.vocab_size,
            "chain": [{"processor": name, "params": dict(params)} for name, params in self.chain],
        }

    def _repr_html_(self) -> str:
        """The view in notebooks: HTML and SVG, without scripts and without other files."""
        ended = "" if self.ended == "length" else f"Ended: {self.ended_because}."
        return notebook(self.prompt_token_ids, self.steps, [name for name, _ in self.chain], self.texts, ended)
