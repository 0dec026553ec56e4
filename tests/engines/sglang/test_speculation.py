"""Processors while a real SGLang verifies the drafts of its NGRAM worker. Only the kernels are not SGLang's own."""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from logitport import CustomLogitProcessor
from logitport.integrations.sglang import RemoteLogitProcessor
from tests.engines.sglang.conftest import KERNELS, Refused

if TYPE_CHECKING:
    from tests.engines.sglang.conftest import Engine

REMOTE = RemoteLogitProcessor.to_str()
START, END = 10, 11
TAGS = {"thinking_start_ids": [START], "thinking_end_ids": [END]}
PROMPTS = [[20, 30, last, START] for last in range(40, 60)]
FEW = {"logit_bias": {str(token_id): 90 for token_id in range(50, 54)}}  # a model that has few choices repeats itself

# Each built-in that needs no tokenizer, by name, with what lets it act.
CHAINS: dict[str, list[Any]] = {
    "disallowed_tokens": [["disallowed_tokens", {"token_ids": list(range(100, 400))}]],
    "thinking_budget": [["thinking_budget", {"thinking_budget": 9, **TAGS}]],
    "no_repeat_ngram": [["logit_bias", FEW], ["no_repeat_ngram", {"ngram_size": 3, "window_size": 90}]],
    "bad_words": [["logit_bias", FEW], ["bad_words", {"bad_words_ids": [[50, 51], [52, 52], [53]]}]],
    "dry": [["logit_bias", FEW], ["dry", {"dry_multiplier": 9, "dry_allowed_length": 1}]],
    "frequency_penalty": [["logit_bias", FEW], ["frequency_penalty", {"frequency_penalty": 2}]],
    "presence_penalty": [["logit_bias", FEW], ["presence_penalty", {"presence_penalty": 2}]],
    "green_list": [["green_list", {"greenlist_ratio": 0.5, "bias": 5}]],
    "logit_bias": [["logit_bias", FEW]],
    "loop_guard": [["logit_bias", FEW], ["loop_guard", {"action": "deny_next", "repeats": 2, "min_length": 6}]],
    "min_tokens": [["logit_bias", {"logit_bias": {"1": 90}}], ["min_tokens", {"min_tokens": 12}]],
    "epsilon": [["epsilon", {"epsilon_cutoff": 0.01}]],
    "eta": [["eta", {"eta_cutoff": 0.01}]],
    "min_p": [["min_p", {"min_p": 0.1}]],
    "repetition_penalty": [["logit_bias", FEW], ["repetition_penalty", {"repetition_penalty": 1.5}]],
    "temperature": [["temperature", {"temperature": 0.7}]],
    "top_k": [["top_k", {"top_k": 5}]],
    "top_p": [["top_p", {"top_p": 0.9}]],
    "typical_p": [["typical_p", {"typical_p": 0.3}]],
}


class FailsLater(CustomLogitProcessor):
    """Raises once the output has five ids, or with `nan` makes a row of NaN."""

    def __call__(self, logits, custom_param_list):
        for row, params in enumerate(custom_param_list):
            if len(params["__req__"].output_ids) >= 5:
                if not params.get("nan"):
                    raise ValueError("five are enough")
                logits[row] = float("nan")
        return logits


ALGORITHMS = ["EAGLE", "EAGLE3", "NEXTN", "STANDALONE", "DFLASH", "DSPARK"]
_CREATE_WORKERS = """
import sys, types
from sglang.srt.speculative import spec_info
from logitport.integrations.sglang import speculation

speculation.install()
spec_info.resolving_view = lambda server_args: types.SimpleNamespace(enable_multi_layer_eagle=False)
for name in sys.argv[1:]:
    print(spec_info.SpeculativeAlgorithm.from_string(name).create_worker(None).__name__, speculation.installed())
"""


def answers(engine: Engine, chain: list[Any], tokens: int) -> list[Any]:
    """Return the responses to all prompts, eight at a time."""
    with ThreadPoolExecutor(8) as threads:
        return list(
            threads.map(
                lambda prompt: engine.answer(
                    prompt, REMOTE, {"logitport": chain}, max_new_tokens=tokens, ignore_eos=False
                ),
                PROMPTS,
            )
        )


@pytest.mark.parametrize("name", CHAINS)
def test_the_ids_are_those_without_drafts(guarded: Engine, drafting: Engine, name: str) -> None:
    """SGLang drafts the outputs of the chains before, too."""
    expected = answers(guarded, CHAINS[name], 24)
    got = answers(drafting, CHAINS[name], 24)
    assert [answer["output_ids"] for answer in got] == [answer["output_ids"] for answer in expected]


def test_a_thinking_budget_of_200_is_kept(guarded: Engine, drafting: Engine) -> None:
    budget = {"logitport": [["logit_bias", FEW], ["thinking_budget", {"thinking_budget": 200, **TAGS}]]}
    expected = guarded.generate(PROMPTS[0], REMOTE, budget, max_new_tokens=210)
    answer = drafting.answer(PROMPTS[0], REMOTE, budget, max_new_tokens=210)
    assert answer["output_ids"] == expected
    assert expected.index(END) == 200
    assert answer["meta_info"]["spec_accept_length"] > 1.5


@pytest.mark.parametrize("params", [{}, {"nan": True}])
def test_a_failing_processor_ends_its_request_alone(drafting: Engine, params: dict[str, Any]) -> None:
    with ThreadPoolExecutor(2) as threads:
        other = threads.submit(drafting.generate, PROMPTS[1])
        with pytest.raises(Refused) as refused:
            drafting.generate(PROMPTS[0], REMOTE, {"logitport": [[FailsLater.to_str(), params]]})
        assert refused.value.status == 500
        assert len(other.result()) == 64
    assert "Scheduler hit an exception" not in drafting.log.read_text()


def test_the_workers_of_other_algorithms_verify_by_patched_functions() -> None:
    """Creates their classes. None of them runs here."""
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _CREATE_WORKERS, *ALGORITHMS],
        capture_output=True,
        text=True,
        env=os.environ | KERNELS,
        timeout=1200,
        check=False,
    )
    workers = [*["EAGLEWorkerV2"] * 3, "StandaloneWorkerV2", "DFlashWorkerV2", "DSparkWorkerV2"]
    assert ran.stdout.splitlines() == [f"{worker} True" for worker in workers], ran.stderr


def test_a_chain_that_changes_nothing_leaves_the_drafts(drafting: Engine) -> None:
    """SGLang begins with an empty store of ids each time, and then drafts the first round in the second one."""

    def accepted(*args: Any) -> list[tuple[int, int]]:
        urllib.request.urlopen(urllib.request.Request(f"{drafting.url}/flush_cache", method="POST")).close()
        metas = [drafting.answer(prompt, *args)["meta_info"] for _ in range(2) for prompt in PROMPTS[:3]]
        return [(meta["spec_num_correct_drafts"], meta["spec_verify_ct"]) for meta in metas]

    without = accepted()
    assert accepted(REMOTE, {"logitport": [["logit_bias", {"logit_bias": {"5": 0}}]]}) == without
    assert all(correct > 30 for correct, _ in without[3:])
