"""Responses of SGLang's server to valid, invalid and failing requests."""

from __future__ import annotations

import json
import threading
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest

from logitport import CustomLogitProcessor
from logitport.integrations.sglang import RemoteLogitProcessor
from tests.engines.checkpoint import VOCAB_SIZE
from tests.engines.sglang.conftest import Refused

if TYPE_CHECKING:
    from tests.engines.sglang.conftest import Engine

PROMPT = [20, 30, 40]
REMOTE = RemoteLogitProcessor.to_str()


class FailsLater(CustomLogitProcessor):
    """Raises once the output has five ids."""

    def __call__(self, logits, custom_param_list):
        for params in custom_param_list:
            if len(params["__req__"].output_ids) >= 5:
                raise ValueError("five are enough")
        return logits


def banning(*token_ids: int) -> dict[str, Any]:
    return {"logitport": [["disallowed_tokens", {"token_ids": list(token_ids)}]]}


def test_samples_of_one_request(guarded: Engine) -> None:
    """n=3 is three requests, each with its own state."""
    bigrams = {"logitport": [["no_repeat_ngram", {"ngram_size": 1, "window_size": 100}]]}
    answers = guarded.answer(PROMPT, REMOTE, bigrams, n=3, temperature=5.0)
    rows = [answer["output_ids"] for answer in answers]
    assert len({tuple(row) for row in rows}) == 3
    for row in rows:
        assert len(set(row)) == len(row) == 64
        assert not set(row) & set(PROMPT)


def test_a_batch_in_one_call_and_a_chain_as_text(guarded: Engine) -> None:
    alone = guarded.generate(PROMPT, REMOTE, banning(7))
    assert guarded.generate(PROMPT, REMOTE, {"logitport": json.dumps(banning(7)["logitport"])}) == alone
    rows = guarded.answer([PROMPT, PROMPT], REMOTE, banning(7))  # type: ignore[list-item]
    assert [row["output_ids"] for row in rows] == [alone, alone]


def test_the_key_alone_names_the_hook(guarded: Engine) -> None:
    """A plain client sends no custom_logit_processor, and sees in the response which processors ran."""
    alone = guarded.generate(PROMPT, REMOTE, banning(7))
    answer = guarded.answer(PROMPT, None, banning(7))
    assert answer["output_ids"] == alone
    assert [one["name"] for one in answer["meta_info"]["logitport"]["processors"]] == ["disallowed_tokens"]
    batch = guarded.answer([PROMPT, PROMPT], None, banning(7))  # type: ignore[list-item]
    assert [one["output_ids"] for one in batch] == [alone, alone]
    assert len(guarded.answer(PROMPT, None, REPORTING, n=2)) == 2
    with pytest.raises(Refused, match="NotFound") as refused:
        guarded.generate(PROMPT, None, {"logitport": [["nonsense", {}]]})
    assert refused.value.status == 400


def test_a_mistyped_key_is_logged(guarded: Engine) -> None:
    assert len(guarded.generate(PROMPT, None, {"logitprot": json.dumps(banning(7)["logitport"])})) == 64
    assert "the key 'logitprot' in custom_params" in guarded.log.read_text()


@pytest.mark.parametrize(
    ("custom", "message"),
    [
        ({"logitport": [["nonsense", {}]]}, "NotFound: no built-in is called 'nonsense'"),
        ({"logitport": 7}, "expected a list of [processor, parameters]"),
        ({"logitport": "[["}, "not JSON"),
        (banning(VOCAB_SIZE), "InvalidArgument"),
        (banning(*range(VOCAB_SIZE)), "deny every id"),
    ],
)
def test_an_invalid_request_is_answered_with_400(guarded: Engine, custom: Any, message: str) -> None:
    with pytest.raises(Refused) as refused:
        guarded.generate(PROMPT, REMOTE, custom)
    assert refused.value.status == 400
    assert message in str(refused.value)
    assert len(guarded.generate(PROMPT)) == 64


THINKS = {"thinking_budget": 4, "thinking_start_ids": [40], "thinking_end_ids": [8, 9]}
REPORTING = {"logitport": [["thinking_budget", THINKS]]}
REPORT = {
    "processors": [{"name": "thinking_budget"}],
    "rows_applied": 64,
    "rows_skipped": 0,
    "skipped": [],
    "error": "",
    "failed_at": None,
    "events": [{"processor": "thinking_budget", "name": "budget_hit", "position": 4, "values": {"at": 4}}],
    "events_left_out": 0,
}


def test_the_meta_info_has_the_report(guarded: Engine) -> None:
    assert guarded.answer(PROMPT, REMOTE, REPORTING)["meta_info"]["logitport"] == REPORT
    assert "logitport" not in guarded.answer(PROMPT)["meta_info"]
    samples = guarded.answer(PROMPT, REMOTE, REPORTING, n=2)
    assert [sample["meta_info"]["logitport"] for sample in samples] == [REPORT] * 2


def test_the_last_chunk_of_a_stream_has_the_report(guarded: Engine) -> None:
    with guarded.post(PROMPT, REMOTE, REPORTING, stream=True) as response:
        lines = [line.removeprefix(b"data: ") for line in response.read().split(b"\n\n") if line]
    *chunks, last = [json.loads(line) for line in lines if line != b"[DONE]"]
    assert last["meta_info"]["logitport"] == REPORT
    assert len(chunks) > 1
    assert not any("logitport" in chunk["meta_info"] for chunk in chunks)


@pytest.mark.parametrize("processor", [{"custom_logit_processor": REMOTE}, {}])
def test_a_chat_completion_has_the_report(guarded: Engine, processor: dict[str, str]) -> None:
    body = {
        "model": "default",
        "messages": [{"role": "user", "content": "w20 w30 w40"}],
        "temperature": 0,
        "max_tokens": 64,
        "ignore_eos": True,
        **processor,
        "custom_params": {"logitport": json.dumps(REPORTING["logitport"])},
        "return_meta_info": True,
    }
    sent = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{guarded.url}/v1/chat/completions", json.dumps(body).encode(), sent)
    with urllib.request.urlopen(request, timeout=120) as response:
        (choice,) = json.load(response)["choices"]
    assert choice["meta_info"]["logitport"] == REPORT


def test_beam_search_is_refused(guarded: Engine) -> None:
    with pytest.raises(Refused, match="beam search"):
        guarded.generate(PROMPT, REMOTE, banning(7), beam_width=2)


def test_a_processor_that_raises_ends_its_own_request(guarded: Engine) -> None:
    fine: list[Any] = []
    concurrent = threading.Thread(target=lambda: fine.append(guarded.generate(PROMPT, REMOTE, banning(7))))
    concurrent.start()
    with pytest.raises(Refused) as refused:
        guarded.generate(PROMPT, REMOTE, {"logitport": [[FailsLater.to_str(), {}]]})
    concurrent.join()
    assert refused.value.status == 500
    assert "ProcessorFailed" in str(refused.value)
    assert "five are enough" in str(refused.value)
    assert fine == [guarded.generate(PROMPT, REMOTE, banning(7))]


def test_a_stream_ends_with_the_error(guarded: Engine) -> None:
    with guarded.post(PROMPT, REMOTE, {"logitport": [[FailsLater.to_str(), {}]]}, stream=True) as response:
        chunks = [json.loads(line[6:]) for line in response if line.startswith(b"data: {")]
    reason = chunks[-1]["meta_info"]["finish_reason"]
    assert reason["type"] == "abort"
    assert "five are enough" in reason["message"]


def test_the_ids_that_could_be_sampled(guarded: Engine) -> None:
    """Chains that only deny ids leave SGLang's sampling mask right; others are refused, also in a default chain."""
    mask = {"extra_fields": {"return_sampling_mask": True}, "top_k": 5, "temperature": 1.0, "max_new_tokens": 8}
    answer = guarded.answer(PROMPT, REMOTE, banning(*range(100, 400)), **mask)
    rows = answer["meta_info"]["output_token_sampling_mask"]
    assert len(rows) == 8
    assert all(0 < len(row) <= 5 and not set(row) & set(range(100, 400)) for row in rows)
    assert all(token_id in row for token_id, row in zip(answer["output_ids"], rows, strict=True))
    for chain in (
        [["temperature", {"temperature": 2.0}]],
        [*banning(7)["logitport"], ["logit_bias", {"logit_bias": {"3": 1}}]],
    ):
        with pytest.raises(Refused, match="only_denies") as refused:
            guarded.answer(PROMPT, None, {"logitport": chain}, **mask)
        assert refused.value.status == 400
