"""Processors of drafts in SGLang's overlap schedule. Its own loop is in tests/engines/sglang/test_overlap_loop.py."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from logitport.integrations.sglang import speculation
from tests.client.integrations.sglang.overlap_loop import OverlapLoop, row_of
from tests.client.integrations.sglang.test_hook import VOCAB_SIZE, Req, finish_abort, params_of, shipped
from tests.client.integrations.sglang.test_speculation import hook

if TYPE_CHECKING:
    from logitport.integrations.sglang.hook import Hook

__all__ = ["finish_abort", "hook", "shipped"]  # fixtures

CHAINS = [
    [["no_repeat_ngram", {"ngram_size": 2, "window_size": 100}]],
    [["thinking_budget", {"thinking_budget": 9, "thinking_start_ids": [3], "thinking_end_ids": [9]}]],
    [["frequency_penalty", {"frequency_penalty": 2}], ["repetition_penalty", {"repetition_penalty": 1.5}]],
]


class WithHistories(OverlapLoop):
    """With the plugin's patch."""

    is_disable_overlap_for_batch = speculation.wrap_overlap(OverlapLoop.is_disable_overlap_for_batch)


def without_drafts(hook: Hook, loop: OverlapLoop, *chain: Any) -> list[list[int]]:
    """Return the ids of the same requests, one after the other."""
    outputs = []
    for req, length in zip(loop.reqs, loop.lengths, strict=True):
        alone = Req([*req.origin_input_ids])
        alone.output_ids.append(req.output_ids[0])
        params = params_of(alone, *chain)
        while len(alone.output_ids) < length:
            logits = row_of([*alone.origin_input_ids, *alone.output_ids])[None]
            hook.process(logits, [params])
            alone.output_ids.append(int(logits.argmax()))
        outputs.append(list(alone.output_ids))
    return outputs


@pytest.mark.parametrize("chain", CHAINS, ids=lambda chain: chain[0][0])
def test_the_ids_are_those_without_drafts(hook: Hook, chain: list[Any]) -> None:
    loop = WithHistories(*chain)
    expected = without_drafts(hook, loop, *chain)
    assert loop.outputs() == expected
    assert OverlapLoop(*chain).outputs() != expected, "SGLang's own histories lack the last accepted ids"


def test_batches_without_processors_overlap(hook: Hook) -> None:
    loop, calls = WithHistories(), []
    process = loop.process_batch_result
    loop.process_batch_result = lambda *args: (calls.append(len(loop.result_queue)), process(*args))  # type: ignore[method-assign,assignment]
    assert loop.outputs() == without_drafts(hook, loop)
    assert calls[0] == 1, "the next batch was launched before"


def test_sglangs_own_reasons_and_other_batches() -> None:
    decides = speculation.wrap_overlap(lambda scheduler, batch, last_batch: bool(last_batch))
    info = SimpleNamespace(has_custom_logit_processor=True)
    drafts, none = (SimpleNamespace(is_none=lambda is_none=is_none: is_none) for is_none in (False, True))
    busy, idle = SimpleNamespace(result_queue=[1]), SimpleNamespace(result_queue=[])
    batch = SimpleNamespace(sampling_info=info, spec_algorithm=drafts)
    assert decides(busy, batch, last_batch=None)
    assert decides(idle, None, last_batch=1)
    assert not decides(idle, batch, last_batch=None)
    assert not decides(busy, None, last_batch=None)
    assert not decides(busy, SimpleNamespace(sampling_info=None, spec_algorithm=drafts), last_batch=None)
    assert not decides(busy, SimpleNamespace(sampling_info=info, spec_algorithm=none), last_batch=None)


def test_the_model_of_these_tests_has_no_equal_logits() -> None:
    assert len(set(row_of([2, 3]).tolist())) == VOCAB_SIZE
    assert not torch.equal(row_of([2, 3]), row_of([2, 4]))
