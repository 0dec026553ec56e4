"""A request whose prompt one SGLang reads, and whose output another one continues, as disaggregation divides them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logitport.integrations.common.ranks import Ranks
from logitport.integrations.sglang.hook import Hook
from tests.client.integrations.sglang.test_hook import (  # noqa: F401 - fixtures
    Req,
    finish_abort,
    hook,
    params_of,
    sample,
    shipped,
    step,
)

if TYPE_CHECKING:
    from logitport import Client

NGRAMS = ["no_repeat_ngram", {"ngram_size": 1}]
BUDGET = ["thinking_budget", {"thinking_budget": 3, "thinking_start_ids": [2], "thinking_end_ids": [9]}]
STEPS = 8


def run(hook: Hook, req: Req, steps: int) -> list[int]:  # noqa: F811 - not the fixture
    params = params_of(req, NGRAMS, BUDGET)
    for _ in range(steps):
        sample(step(hook, params), req)
    return list(req.output_ids)


def test_the_decode_worker_rebuilds_the_state_from_the_ids(client: Client, hook: Hook) -> None:  # noqa: F811
    expected = run(hook, Req([2]), STEPS)
    assert expected[:5] == [31, 30, 29, 9, 28]

    prompt = Req([2])
    first = run(hook, prompt, 1)
    prompt.ended = True  # the prefill worker samples the first id, and passes it on
    decode = Hook(lambda: client, tuple, Ranks(), "")
    try:
        req = Req([2])
        req.output_ids.extend(first)
        assert run(decode, req, STEPS - 1) == expected
    finally:
        decode._holder.close()
