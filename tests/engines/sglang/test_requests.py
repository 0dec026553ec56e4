"""Responses of SGLang's server to valid, invalid and failing requests."""

from __future__ import annotations

import json
import threading
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
