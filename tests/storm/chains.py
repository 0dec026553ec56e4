"""Random chains, as data: names of built-ins and of classes, with parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.storm.classes import BAD, GOOD
from tests.storm.reference import EDITING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from random import Random

Chain = list[tuple[str, dict[str, Any]]]

# Processors whose state does not follow from the history, or might not.
_READING_CODE = {"Scale", "AddCallCount"}
_MAX_ENTRIES = 4
# A vocabulary so wide that edits of a row have megabytes; what reads such a row takes seconds.
WIDE = 200_000


def _ids(random: Random, vocab: int, count: int) -> list[int]:
    return [random.randrange(vocab) for _ in range(random.randint(1, count))]


def _number(random: Random, low: float, high: float) -> float:
    """A number with few bits, or with all."""
    number = random.uniform(low, high)
    return round(number * 64) / 64 if random.random() < 0.5 else number


def _thinking(random: Random, vocab: int) -> dict[str, Any]:
    start, end, newline = random.sample(range(vocab), 3)
    params = {"thinking_budget": random.randint(0, 9), "thinking_start_ids": [start], "thinking_end_ids": [end]}
    return params | ({"newline_id": newline} if random.random() < 0.5 else {})


def _ngram(random: Random, vocab: int) -> dict[str, Any]:
    params: dict[str, Any] = {"ngram_size": random.randint(1, 4)}
    if random.random() < 0.5:
        params["window_size"] = random.choice([1, 5, 90, 5000])
    if random.random() < 0.3:
        params["whitelist_token_ids"] = _ids(random, vocab, 5)
    return params


def _bad_words(random: Random, vocab: int) -> dict[str, Any]:
    return {
        "bad_words_ids": [_ids(random, vocab, 3) for _ in range(random.randint(1, 40))],
        "generated_only": random.random() < 0.5,
    }


def _logit_bias(random: Random, vocab: int) -> dict[str, Any]:
    return {"logit_bias": {str(token_id): _number(random, -100, 100) for token_id in _ids(random, vocab, 20)}}


def _loops(random: Random, vocab: int) -> dict[str, Any]:
    return {
        "action": random.choice(["deny_next", "report"]),
        "repeats": random.randint(2, 3),
        "max_period": random.choice([1, 4, 512]),
        "min_length": random.choice([0, 6]),
        "plain_repeats": random.choice([0, 4]),
    }


_PARAMS: dict[str, Callable[[Random, int], dict[str, Any]]] = {
    "disallowed_tokens": lambda random, vocab: {
        "token_ids": [*range(vocab)] if vocab < 400 and random.random() < 0.3 else _ids(random, vocab, 20)
    },
    "logit_bias": _logit_bias,
    "loop_guard": _loops,
    "min_tokens": lambda random, vocab: {"min_tokens": random.randint(0, 20), "stop_token_ids": _ids(random, vocab, 3)},
    "bad_words": _bad_words,
    "no_repeat_ngram": _ngram,
    "presence_penalty": lambda random, vocab: {"presence_penalty": _number(random, -2, 2)},
    "frequency_penalty": lambda random, vocab: {"frequency_penalty": _number(random, -2, 2)},
    "thinking_budget": _thinking,
    "temperature": lambda random, vocab: {"temperature": random.choice([0, _number(random, 0.1, 3)])},
    "top_k": lambda random, vocab: {"top_k": random.choice([-1, 0, 1, 5, 40, 1024])},
    "top_p": lambda random, vocab: {"top_p": random.choice([1.0, random.uniform(0.05, 0.999)])},
    "min_p": lambda random, vocab: {"min_p": random.choice([0.0, random.uniform(0.001, 0.5)])},
    "repetition_penalty": lambda random, vocab: {"repetition_penalty": random.uniform(0.5, 2)},
    "Rest": lambda random, vocab: {"stride": random.randint(3, 9)},
    "DenyLast": lambda random, vocab: {},
    "Slow": lambda random, vocab: {"seconds": random.choice([0.001, 0.02])},
    "Scale": lambda random, vocab: {"factor": random.choice([0.5, 1.25, 2.0])},
    "AddCallCount": lambda random, vocab: {},
    "ScaleProgram": lambda random, vocab: {"factor": random.choice([0.5, 1.25, 2.0])},
}
BUILTINS = [name for name in _PARAMS if name not in GOOD]


def draw(random: Random, vocab: int, classes: Sequence[str] = tuple(GOOD)) -> Chain:
    """Return a chain of built-ins, and of shipped classes with these names; it may be empty."""
    count = random.choice([0, 1, 1, 2, 2, 3, _MAX_ENTRIES])
    builtins = BUILTINS if vocab < WIDE else [name for name in BUILTINS if name in EDITING]
    names = [random.choice(classes if classes and random.random() < 0.3 else builtins) for _ in range(count)]
    names = [name for at, name in enumerate(names) if name != "thinking_budget" or name not in names[:at]]
    names.sort(key="thinking_budget".__eq__)  # a later processor that denies what it forces is refused
    return [(name, _PARAMS[name](random, vocab)) for name in names]


def draw_bad(random: Random) -> Chain:
    """Return a chain of a class that does harm."""
    return [(random.choice(sorted(BAD)), {})]


def ships(chain: Chain) -> bool:
    """Whether the chain has code that runs in a worker."""
    return any(name in GOOD or name in BAD for name, _ in chain if name != "ScaleProgram")


def follows_from_history(chain: Chain) -> bool:
    """Whether the chain continues after the loss of its state, or of ids at the end of its history."""
    return not any(name in _READING_CODE for name, _ in chain)


def only_edits(chain: Chain) -> bool:
    """Whether every processor of the chain reads no logits."""
    return all(name in EDITING for name, _ in chain)
