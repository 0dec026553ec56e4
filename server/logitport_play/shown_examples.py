"""The examples that the page begins with: the small model without and with one processor, from one seed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from logitport_testing import StoryModel, simulate

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from logitport_testing import Simulation, StepRecord

STEPS = 24
_CANDIDATES = 5
_UNLIKELY = 0.1  # of the probability of the best id
_STORY = StoryModel()
_BANNED = _STORY.encode(" king fox girl")
_BEGIN, _END = _STORY.encode("()")


@dataclass(frozen=True)
class Example:
    """A chain of one processor, and the ids by which its effect shows.

    Attributes:
        title: its name.
        about: a sentence about it.
        prompt, seed: of both runs.
        processor, params: a built-in's name, and its parameters.
        counted: a description of the counted ids.
        is_counted: returns for each step whether its id is counted.
    """

    title: str
    about: str
    prompt: str
    seed: int
    processor: str
    params: Mapping[str, Any]
    counted: str
    is_counted: Callable[[Sequence[StepRecord]], list[bool]]

    def run(self, *, without: bool) -> Simulation:
        """Run the model with the processor, or without it."""
        chain = [] if without else [(self.processor, self.params)]
        prompt = _STORY.encode(self.prompt)
        return simulate(chain, _STORY, prompt, STEPS, temperature=1.0, seed=self.seed, top_k=_CANDIDATES)


def _banned(steps: Sequence[StepRecord]) -> list[bool]:
    return [step.token_id in _BANNED for step in steps]


def _thinking(steps: Sequence[StepRecord]) -> list[bool]:
    """The ids before the end of the thinking that the prompt has begun."""
    ids = [step.token_id for step in steps]
    length = ids.index(_END) if _END in ids else len(ids)
    return [index < length for index in range(len(ids))]


def _unlikely(steps: Sequence[StepRecord]) -> list[bool]:
    return [step.probability < _UNLIKELY * float(step.final.top_probabilities[0]) for step in steps]


# The seeds are those of runs that show much.
EXAMPLES = (
    Example(
        "Banned words",
        "The words king, fox and girl get no probability. Other words share what they had.",
        "Once upon a time",
        28,
        "disallowed_tokens",
        {"token_ids": _BANNED},
        "banned words",
        _banned,
    ),
    Example(
        "A budget for thinking",
        "Brackets enclose what the model thinks. It does not stop by itself; after 8 words the bracket is closed.",
        "The girl sat by an old tree. (",
        3,
        "thinking_budget",
        {"thinking_budget": 8, "thinking_start_ids": [_BEGIN], "thinking_end_ids": [_END]},
        "words of thinking",
        _thinking,
    ),
    Example(
        "A sampler",
        "Words with less than a tenth of the best word's probability are not drawn.",
        "The old king",
        2,
        "min_p",
        {"min_p": _UNLIKELY},
        "unlikely words",
        _unlikely,
    ),
)
