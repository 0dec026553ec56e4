"""A request whose prompt one SGLang reads, and whose output another one continues, as disaggregation divides them."""

from __future__ import annotations

import sys
from http import HTTPStatus
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from logitport.integrations.common.ranks import Ranks
from logitport.integrations.sglang.engine_options import is_disaggregated
from logitport.integrations.sglang.hook import Hook
from tests.client.integrations.sglang.test_hook import (  # noqa: F401 - fixtures
    EOS,
    Req,
    finish_abort,
    hook,
    params_of,
    sample,
    shipped,
    step,
)
from tests.toy_processors import AddCallCount

if TYPE_CHECKING:
    from collections.abc import Iterator

    from logitport import Client

NGRAMS = ["no_repeat_ngram", {"ngram_size": 1}]
BUDGET = ["thinking_budget", {"thinking_budget": 3, "thinking_start_ids": [2], "thinking_end_ids": [9]}]
TEMPERATURE = ["temperature", {"temperature": 2.0}]
READER = [AddCallCount.to_str(), {}]
STEPS = 8


def set_mode(monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    """Run the hooks in an SGLang with this --disaggregation-mode."""
    values = {"speculative_num_draft_tokens": 6, "disaggregation_mode": mode}
    context = SimpleNamespace(config_leaf=lambda name: values.get(name, name))
    monkeypatch.setattr(sys.modules["sglang.srt.runtime_context"], "get_context", lambda: context)


@pytest.fixture
def decode(client: Client) -> Iterator[Hook]:
    """The hook of the decode engine; `hook` is that of the prefill engine."""
    decode = Hook(lambda: client, tuple, Ranks(), "")
    yield decode
    decode._holder.close()


def run(hook: Hook, req: Req, steps: int, *chain: Any) -> list[int]:  # noqa: F811 - not the fixture
    params = params_of(req, *chain)
    for _ in range(steps):
        sample(step(hook, params), req)
    return list(req.output_ids)


@pytest.mark.parametrize("chain", [[NGRAMS, BUDGET], [NGRAMS, TEMPERATURE]], ids=["edits", "with a program"])
def test_the_decode_worker_rebuilds_the_state_from_the_ids(
    monkeypatch: pytest.MonkeyPatch,
    hook: Hook,  # noqa: F811
    decode: Hook,
    chain: list[Any],
) -> None:
    expected = run(hook, Req([2]), STEPS, *chain)
    hook._batch._discard_session(RuntimeError("begin again"))
    hook._holder.breaker.record_success()

    set_mode(monkeypatch, "prefill")
    prompt = Req([2])
    first = run(hook, prompt, 1, *chain)
    prompt.ended = True  # the prefill worker samples the first id, and passes it on
    assert prompt.to_finish is None

    set_mode(monkeypatch, "decode")
    req = Req([2])
    req.output_ids.extend(first)
    assert run(decode, req, STEPS - 1, *chain) == expected
    assert expected[0] == 31


@pytest.mark.parametrize("masks", [False, True])
def test_a_sampling_mask_of_a_chain_that_adds_biases_is_refused(hook: Hook, masks: bool) -> None:  # noqa: F811
    """A name may mean another class by now than in the trial of the front end."""
    req, other = Req([2], return_sampling_mask=masks), Req([3], return_sampling_mask=masks)
    adds = ["logit_bias", {"logit_bias": {"4": 1.0}}]
    sample(step(hook, params_of(req, adds), params_of(other, NGRAMS)), req, other)
    assert (req.to_finish is not None, other.to_finish) == (masks, None)
    if masks:
        assert req.to_finish.status == HTTPStatus.BAD_REQUEST
        assert "declare only_denies" in req.to_finish.message


@pytest.mark.parametrize(("mode", "refused"), [("null", False), ("prefill", True), ("decode", True)])
def test_state_that_does_not_follow_from_the_ids_is_refused(
    monkeypatch: pytest.MonkeyPatch,
    hook: Hook,  # noqa: F811
    mode: str,
    refused: bool,
) -> None:
    """Neither engine has the logits that the other one's processors have read. Other requests go on."""
    set_mode(monkeypatch, mode)
    assert is_disaggregated() == refused
    req, other = Req([2]), Req([3])
    ids = sample(step(hook, params_of(req, READER), params_of(other, NGRAMS)), req, other)
    assert ids == [EOS if refused else 31, 31]
    req.ended = refused
    sample(step(hook, params_of(req, READER), params_of(other, NGRAMS)), req, other)
    assert list(other.output_ids) == [31, 30]
    assert other.to_finish is None
    assert (req.to_finish is not None) == refused
    if refused:
        assert req.to_finish.status == HTTPStatus.BAD_REQUEST
        assert "passes only the ids from the prefill engine" in req.to_finish.message
