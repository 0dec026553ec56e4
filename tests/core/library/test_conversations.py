"""The same conversations by the library and by the Python SDK: the logits have the same bits."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from logitport import Client, LogitportError, Request
from tests.core.library.c_session import CSession

if TYPE_CHECKING:
    import ctypes
    from collections.abc import Mapping

    from tests.conftest import RunningServer

VOCAB, EOS, DRAFTS = 97, [7, 9], 4
CHAINS: list[list[tuple[str, Mapping[str, Any]]]] = [
    [],
    [("disallowed_tokens", {"token_ids": [1, 2, 2, 40]})],
    [("no_repeat_ngram", {"ngram_size": 2})],
    [("no_repeat_ngram", {"ngram_size": 1, "window_size": 5, "whitelist_token_ids": [3, 96, 5000]})],
    [("logit_bias", {"logit_bias": {"11": 1.5, "3": -100, "50": 0.1}})],
    [("presence_penalty", {"presence_penalty": 0.7}), ("frequency_penalty", {"frequency_penalty": -0.3})],
    [("min_tokens", {"min_tokens": 6, "stop_token_ids": [12]})],
    [("bad_words", {"bad_words_ids": [[5], [1, 2], [3, 4, 5]], "generated_only": True})],
    [("bad_words", {"bad_words_ids": [[6, 1], [1, 1]]}), ("logit_bias", {"logit_bias": {"1": 2}})],
    [("thinking_budget", {"thinking_budget": 3, "thinking_start_ids": [1], "thinking_end_ids": [2], "newline_id": 4})],
    [
        (
            "thinking_budget",
            {
                "thinking_budget": 9,
                "thinking_start_ids": [1],
                "thinking_end_ids": [2, 3],
                "soft_from": 2,
                "min_thinking": 2,
                "end_text": [8, 8],
            },
        )
    ],
    [("loop_guard", {"action": "deny_next", "repeats": 2, "min_length": 2, "plain_repeats": 0, "max_period": 4})],
    [("loop_guard", {"action": "end", "repeats": 2, "min_length": 3, "plain_repeats": 3})],
    [
        (
            "loop_guard",
            {
                "action": "end_thinking",
                "repeats": 2,
                "min_length": 2,
                "plain_repeats": 0,
                "thinking_start_ids": [1],
                "thinking_end_ids": [2],
            },
        )
    ],
]
READERS: list[list[tuple[str, Mapping[str, Any]]]] = [
    [("min_p", {"min_p": 0.2}), ("disallowed_tokens", {"token_ids": [4]})],
    [("no_repeat_ngram", {"ngram_size": 1}), ("top_k", {"top_k": 5})],
]


class Pair:
    """A session of the library and one of the SDK, with the same requests."""

    def __init__(self, own: CSession, other: Any, dtype: str) -> None:
        self.own, self.other = own, other
        self.handles: dict[int, Any] = {}
        self.dtype = getattr(torch, dtype)
        self.random = random.Random(1)

    def add(self, chain: list[tuple[str, Mapping[str, Any]]], prompt: list[int], output: list[int]) -> None:
        handle = self.own.add(prompt, chain, output=output)
        self.handles[handle] = self.other.add(Request(prompt, output, processors=chain))

    def remove(self, handle: int) -> None:
        self.own.remove(handle)
        self.other.remove(self.handles.pop(handle))

    def rewind(self, handle: int, length: int) -> None:
        self.own.rewind(handle, length)
        self.other.rewind(self.handles[handle], length)

    def step(
        self,
        new_ids: dict[int, list[int]],
        drafts: dict[int, list[int]] | None = None,
        parents: dict[int, list[int]] | None = None,
        rows: list[tuple[int, int]] | None = None,
    ) -> None:
        """Make a step with both, and compare all that they return."""
        count = self.own.begin(new_ids, drafts=drafts, parents=parents, rows=rows)

        def named(values: Any) -> Any:
            return values and {self.handles[handle]: ids for handle, ids in values.items()}

        pending = self.other.step(
            named(new_ids) or {},
            drafts=named(drafts),
            draft_parents=named(parents),
            rows=rows and [(self.handles[handle], at) for handle, at in rows],
        )
        logits = torch.randn(count, VOCAB, generator=torch.Generator().manual_seed(count)).to(self.dtype)
        own = logits.clone()
        expected = pending.apply(logits, check=False)
        bits = own.numpy() if self.dtype != torch.bfloat16 else own.view(torch.int16).numpy()
        result = self.own.apply(bits)
        assert torch.equal(own.view(torch.uint8), logits.view(torch.uint8))
        assert result.all_denied_rows == expected.all_denied_rows
        assert result.rows_applied == expected.rows_applied
        assert {self.handles[handle]: one.message for handle, one in result.failures.items()} == {
            handle: error.message for handle, error in expected.failures.items()
        }


def _converse(pair: Pair, chains: list[list[tuple[str, Mapping[str, Any]]]], steps: int = 40) -> None:
    """Run random steps: requests come and go, speculate with chains and trees, and are preempted and rewound."""
    rng = pair.random

    def ids(count: int) -> list[int]:
        return [rng.randrange(8) for _ in range(count)]

    new: dict[int, list[int]] = {}
    lengths: dict[int, tuple[int, int]] = {}
    for _ in range(steps):
        while len(pair.handles) < 5 or rng.random() < 0.1:
            before = set(pair.handles)
            prompt, output = ids(rng.randrange(6)), ids(rng.choice([0, 0, 3]))
            pair.add(rng.choice(chains), prompt, output)
            (handle,) = set(pair.handles) - before
            new[handle] = []
            lengths[handle] = len(prompt), len(prompt) + len(output)
        taken = [handle for handle in pair.handles if rng.random() < 0.8]
        step = {handle: new[handle] for handle in taken}
        drafts = {handle: ids(rng.randrange(DRAFTS + 1)) for handle in taken if rng.random() < 0.4}
        parents = {
            handle: [rng.randrange(-1, index) for index in range(len(guesses))]
            for handle, guesses in drafts.items()
            if rng.random() < 0.5
        }
        rows = None
        if rng.random() < 0.3 and taken:
            places = [(handle, at) for handle in taken for at in range(len(drafts.get(handle, ())) + 1)]
            rows = rng.sample(places, rng.randrange(1, len(places) + 1))
        pair.step(step, drafts, parents, rows)
        for handle in taken:
            prompt_length, length = lengths[handle]
            lengths[handle] = prompt_length, length + len(step[handle])
            new[handle] = ids(rng.choice([1, 1, 1, 3]))
        for handle in list(pair.handles):
            prompt_length, length = lengths[handle]
            assert pair.own.length(handle) == length
            if rng.random() < 0.1:
                cut = rng.randrange(prompt_length, length + 1)
                pair.rewind(handle, cut)
                lengths[handle] = prompt_length, cut
            if rng.random() < 0.07:
                pair.remove(handle)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("place", ["embedded", "server"])
def test_random_conversations_have_the_same_results(
    place: str, dtype: str, library: ctypes.CDLL, server: RunningServer
) -> None:
    options: dict[str, Any] = {"vocab_size": VOCAB, "eos_token_ids": EOS, "max_draft_tokens": DRAFTS}
    target = None if place == "embedded" else server.target
    with (
        Client("embedded" if target is None else target) as client,
        client.session(dtype=getattr(torch, dtype), **options) as other,
        CSession(library, target, dtype=dtype, **options) as own,
    ):
        _converse(Pair(own, other, dtype), CHAINS if target is None else CHAINS + READERS)


def test_processors_that_read_logits_edit_the_buffer_in_place(library: ctypes.CDLL, server: RunningServer) -> None:
    with (
        Client(server.target) as client,
        client.session(vocab_size=VOCAB, programs="off") as other,
        CSession(library, server.target, vocab_size=VOCAB) as own,
    ):
        handle, expected = own.add([1, 2], READERS[0]), other.add(Request([1, 2], processors=READERS[0]))
        for new_ids in ([], [3], [4]):
            values = np.random.default_rng(len(new_ids)).standard_normal((1, VOCAB), np.float32)
            logits = own.logits_buffer(1)
            logits[:] = values
            assert own.begin({handle: new_ids}) == 1
            own.apply(logits)
            other.step({expected: new_ids}).apply(values)
            assert logits.tobytes() == values.tobytes()
            assert np.isneginf(logits).any()


REFUSED: list[tuple[str, Mapping[str, Any]]] = [
    ("disallowed_tokens", {"token_ids": [VOCAB]}),
    ("disallowed_tokens", {"token_ids": [1.5, True]}),
    ("disallowed_tokens", {"token_ids": None}),
    ("disallowed_tokens", {"ids": ["it's"]}),
    ("logit_bias", {"logit_bias": {"x": 1}}),
    ("logit_bias", {"logit_bias": {"1": 101}}),
    ("logit_bias", {"logit_bias": {"1": 1, "01": 2}}),
    ("min_tokens", {"min_tokens": -1}),
    ("min_tokens", {"min_tokens": True}),
    ("no_repeat_ngram", {"ngram_size": 0}),
    ("no_repeat_ngram", {"ngram_size": 2**40, "window_size": "a\n"}),
    ("bad_words", {"bad_words_ids": [[1], []]}),
    ("bad_words", {"bad_words_ids": [1]}),
    ("bad_words", {"bad_words_ids": [[1]], "generated_only": 1}),
    ("presence_penalty", {"presence_penalty": 2.5}),
    ("frequency_penalty", {"frequency_penalty": [None, {"a": 0.1}]}),
    ("thinking_budget", {"thinking_budget": 1, "preset": "none"}),
    ("thinking_budget", {"thinking_budget": 1, "preset": "qwen3", "newline_id": 3}),
    ("thinking_budget", {"thinking_budget": 1, "preset": "qwen3"}),
    ("thinking_budget", {"thinking_budget": 1, "thinking_start_ids": [1]}),
    ("thinking_budget", {"thinking_budget": 1, "thinking_start_ids": [1], "thinking_end_ids": [2, 1]}),
    ("thinking_budget", {"thinking_budget": 0, "thinking_start_ids": [1, 1], "thinking_end_ids": [1]}),
    (
        "thinking_budget",
        {"thinking_budget": 1, "thinking_start_ids": [1], "thinking_end_ids": [2], "end_text": [2]},
    ),
    ("thinking_budget", {"thinking_budget": 1, "thinking_start_ids": [1], "thinking_end_ids": [2], "soft_from": 1}),
    ("thinking_budget", {"thinking_budget": 1, "thinking_start_ids": [1], "thinking_end_ids": [2], "min_thinking": 2}),
    ("loop_guard", {}),
    ("loop_guard", {"action": "stop"}),
    ("loop_guard", {"action": "report", "max_period": 9000}),
    ("loop_guard", {"action": "report", "preset": "qwen3"}),
]


def test_embedded_admissions_refuse_what_the_sdk_refuses(library: ctypes.CDLL) -> None:
    with (
        Client("embedded") as client,
        client.session(vocab_size=VOCAB) as other,
        CSession(library, None, vocab_size=VOCAB) as own,
    ):
        found = own.add_all(*({"prompt": [1], "processors": [one]} for one in REFUSED))
        for processor, error in zip(REFUSED, found, strict=True):
            with pytest.raises(LogitportError) as refused:
                other.add(Request([1], processors=[processor]))
            assert isinstance(error, Exception), processor
            assert (error.code, error.message) == (refused.value.code, refused.value.message)  # type: ignore[attr-defined]
        assert own.stats == (0, 0, 0)
