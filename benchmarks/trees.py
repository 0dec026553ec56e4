"""Steps with a tree of drafts beside steps with a chain of as many: `python -m benchmarks.trees`, and `publish`.

Eight requests have 64 drafts each, in one embedded session for each shape. The tree has 8 levels of 8 drafts, in the
order of the levels, and each draft follows one of the level before at random. Both shapes have the same ids, and take
turns. The time is that of the whole step, of all threads, for each built-in. A step in which a processor has failed,
such as by its limit of time on a busy machine, does not count.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from benchmarks import suite
from benchmarks.measure import LOWER_QUARTILE, ROUNDS, over_rounds
from benchmarks.records import BarLine
from benchmarks.report import Report
from logitport import Client, Request
from logitport_builtins import BUILTIN_PROGRAMS

_VOCAB_SIZE = 4096
_REQUESTS = 8
_LEVELS, _WIDTH = 8, 8
_PROMPT, _OUTPUT = 256, 1024
_STEPS, _WARM_UP = 7, 2
_BAR = 1.2
_TAGS = {"thinking_start_ids": [1000], "thinking_end_ids": [1001]}
_CHAINS: list[tuple[str, dict[str, Any]]] = [
    ("disallowed_tokens", {"token_ids": [5, 9]}),
    ("thinking_budget", {"thinking_budget": 512, **_TAGS}),
    ("no_repeat_ngram", {"ngram_size": 3}),
    ("grammar", {"regex": "[a-z]*"}),
    ("bad_words", {"bad_words_ids": [[70, 71], [72]]}),
    ("banned_strings", {"banned_strings": ["abc", "xyz"]}),
    ("force_prefix", {"force_prefix": "a"}),
    ("stop_on", {"stop_on": ["qqqqqq"]}),
    ("dry", {"dry_multiplier": 0.8}),
    ("frequency_penalty", {"frequency_penalty": 0.5}),
    ("green_list", {}),
    ("logit_bias", {"logit_bias": {"7": 1.5}}),
    ("loop_guard", {"action": "deny_next"}),
    ("min_tokens", {"min_tokens": 4096, "stop_token_ids": [3]}),
    ("presence_penalty", {"presence_penalty": 0.5}),
    ("epsilon", {"epsilon_cutoff": 0.001}),
    ("eta", {"eta_cutoff": 0.001}),
    ("min_p", {"min_p": 0.1}),
    ("repetition_penalty", {"repetition_penalty": 1.2}),
    ("temperature", {"temperature": 0.7}),
    ("top_k", {"top_k": 50}),
    ("top_p", {"top_p": 0.9}),
    ("typical_p", {"typical_p": 0.9}),
]


def run() -> Report:
    """Run all parts."""
    return suite.run({"trees": _trees})


def _trees() -> Iterator[BarLine]:
    with tempfile.TemporaryDirectory() as folder:
        tokenizer = Path(folder) / "tokenizer.json"
        vocabulary = {piece: at for at, piece in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
        saved = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
        saved.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        saved.decoder = decoders.ByteLevel()
        saved.save(str(tokenizer))
        letters = np.array([vocabulary[letter] for letter in "abcdefghijklmnopqrstuvwxyz"])
        for chain in _CHAINS:
            ratios = _ratios(chain, str(tokenizer), letters)
            yield BarLine(f"{chain[0]}, a step with a tree of 64 drafts ÷ a chain", over_rounds(ratios), _BAR)


def _ratios(chain: tuple[str, dict[str, Any]], tokenizer: str, letters: Any) -> Any:
    """The time of a step with trees, divided by that of a step with chains, by round: float64[ROUNDS]."""
    random = np.random.default_rng(1)
    outputs = random.choice(letters, (_REQUESTS, _OUTPUT))
    outputs[:, 0] = letters[0]  # the text that `force_prefix` requires
    with Client.embedded() as client:
        sides = [_Side(client, chain, tokenizer, outputs, tree=tree) for tree in (False, True)]
        spent = []
        for step in range(_WARM_UP + ROUNDS * _STEPS):
            new_ids = random.choice(letters, _REQUESTS).tolist()
            drafts = random.choice(letters, (_REQUESTS, _LEVELS * _WIDTH)).tolist()
            order = (0, 1) if step % 2 else (1, 0)
            found = {side: sides[side].step(new_ids, drafts) for side in order}
            spent.append([found[0], found[1]])
    timed = np.array(spent[_WARM_UP:], float).reshape(ROUNDS, _STEPS, 2)
    timed[np.isnan(timed).any(axis=2)] = np.nan  # both sides of a step, or none
    chains, trees = np.nanquantile(timed, LOWER_QUARTILE, axis=1).T
    return trees / chains


def _parents() -> list[int]:
    random = np.random.default_rng(2)
    before = np.repeat(_WIDTH * np.arange(_LEVELS - 1), _WIDTH)
    later: list[int] = (before + random.integers(_WIDTH, size=len(before))).tolist()
    return [-1] * _WIDTH + later


class _Side:
    """An embedded session with chains or trees of drafts."""

    def __init__(
        self, client: Client, chain: tuple[str, dict[str, Any]], tokenizer: str, outputs: Any, *, tree: bool
    ) -> None:
        self._session = client.session(
            vocab_size=_VOCAB_SIZE,
            dtype="float32",
            max_draft_tokens=_LEVELS * _WIDTH,
            tokenizer_id=tokenizer,
            eos_token_ids=[_VOCAB_SIZE - 1],
        )
        prompt = [1000, *outputs[0, : _PROMPT - 1].tolist()]
        requests = [Request(prompt, output.tolist(), [chain], on_error="skip") for output in outputs]
        self._handles = [self._session.add(request) for request in requests]
        self._parents = dict.fromkeys(self._handles, _parents()) if tree else None
        rows = _REQUESTS * (1 + _LEVELS * _WIDTH)
        is_read = chain[0] in BUILTIN_PROGRAMS
        self._logits = np.random.default_rng(3).normal(scale=3, size=(rows, _VOCAB_SIZE)) if is_read else None
        self._session.step(dict.fromkeys(self._handles, ())).apply(np.zeros((_REQUESTS, _VOCAB_SIZE), np.float32))

    def step(self, new_ids: list[int], drafts: list[list[int]]) -> float:
        """Processor time of a step in nanoseconds, of all threads; NaN if a processor has failed."""
        new = {handle: [token_id] for handle, token_id in zip(self._handles, new_ids, strict=True)}
        drafted = dict(zip(self._handles, drafts, strict=True))
        logits = None if self._logits is None else self._logits.astype(np.float32)
        started = time.process_time_ns()
        pending = self._session.step(new, drafts=drafted, draft_parents=self._parents)
        if logits is None:
            pending.edits()
            result = pending.result
        else:
            result = pending.apply(logits)
        spent = time.process_time_ns() - started
        return math.nan if result is None or result.skipped else spent


if __name__ == "__main__":
    suite.main("trees", __doc__, "trees", run)
