"""llama.cpp completes through the service, compared with the same processors in its own process."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from logitport import Client, CustomLogitProcessor, NotFound, RequestsFailed
from logitport.integrations.llama_cpp import RemoteLogitsProcessor
from logitport_builtins import DisallowedTokens, NoRepeatNGram, ThinkingBudget
from tests.shipped_processors import CountsCalls, ForcesLengths, RaisesAfter, Tilt

if TYPE_CHECKING:
    from collections.abc import Callable

    from llama_cpp import Llama
    from numpy.typing import NDArray

    Chain = list[tuple[type[CustomLogitProcessor], dict[str, Any]]]

VOCAB_SIZE, NEW = 512, 64


class Local:
    """A chain as llama-cpp-python's own kind of processor, for one prompt."""

    def __init__(self, chain: Chain, prompt: list[int]) -> None:
        self.chain = [(processor(), dict(params)) for processor, params in chain]
        self.prompt = prompt

    def __call__(self, input_ids: NDArray[np.intc], scores: NDArray[np.single]) -> NDArray[np.single]:
        logits = torch.from_numpy(np.array(scores))[None]
        output = input_ids.tolist()[len(self.prompt) :]
        for processor, params in self.chain:
            params["__req__"] = SimpleNamespace(origin_input_ids=self.prompt, output_ids=output)
            logits = processor(logits, [params])
        return logits[0].numpy()


THINKING = {"thinking_budget": 6, "thinking_start_ids": [7], "thinking_end_ids": [8, 9], "newline_id": 10}
CHAINS: dict[str, Chain] = {
    "disallowed_tokens": [(DisallowedTokens, {"token_ids": list(range(3, VOCAB_SIZE, 3))})],
    "thinking_budget": [(ThinkingBudget, THINKING)],
    "no_repeat_ngram": [(NoRepeatNGram, {"ngram_size": 1, "window_size": 40})],
    "reads logits": [(Tilt, {"by": 4.0})],
    "counts calls": [(CountsCalls, {})],
}
CHAINS["a chain"] = [*CHAINS["reads logits"], *CHAINS["disallowed_tokens"], *CHAINS["no_repeat_ngram"]]
# Without these the random model may end, or generate an id without a word.
WORDS: Chain = [(DisallowedTokens, {"token_ids": [0, 1, 2]})]


@pytest.mark.parametrize("chain", CHAINS)
def test_tokens_equal_those_of_the_same_processors_in_process(
    client: Client, complete: Callable[..., list[int]], prompts: list[list[int]], chain: str
) -> None:
    processors = [*CHAINS[chain], *WORDS]
    remote = RemoteLogitsProcessor(processors, client=client)
    changed = 0
    for prompt in prompts:
        through_service = complete(prompt, remote)
        assert len(through_service) == NEW
        assert through_service == complete(prompt, Local(processors, prompt))
        changed += through_service != complete(prompt, Local(WORDS, prompt))
    assert changed == len(prompts)
    assert remote.steps == len(prompts) * NEW
    assert sum(remote.rows_applied.values()) == remote.steps * len(processors)


def test_each_completion_is_a_new_request_whatever_its_prompt(
    client: Client, complete: Callable[..., list[int]]
) -> None:
    remote = RemoteLogitsProcessor([(ForcesLengths, {})], client=client)
    prompt = [20, 21, 22]
    first = complete(prompt, remote, length=4)
    assert first == [103, 101, 102, 103]
    assert complete([*prompt, *first], remote, length=2) == [107, 101], "the last step had one id less"
    assert complete([*prompt, *first], remote, length=2) == [107, 101], "llama.cpp has the prompt in its cache"
    assert complete(prompt, remote, length=2) == [103, 101]


def test_streams_of_two_models_alternate(client: Client, model: Llama, load: Callable[..., Llama]) -> None:
    from llama_cpp import LogitsProcessorList

    processors = LogitsProcessorList([RemoteLogitsProcessor([(ForcesLengths, {})], client=client)])
    streams = [
        llm.create_completion([20, 21, 22], max_tokens=4, logits_processor=processors, stream=True)
        for llm in (model, load())
    ]
    texts = [[part["choices"][0]["text"] for part in pair] for pair in zip(*streams, strict=True)]
    assert ["".join(column).split() for column in zip(*texts, strict=True)] == [["w103", "w101", "w102", "w103"]] * 2


@pytest.mark.parametrize("chain", ["disallowed_tokens", "reads logits", "a chain"])
def test_a_draft_model_changes_nothing(
    client: Client,
    complete: Callable[..., list[int]],
    load: Callable[..., Llama],
    prompts: list[list[int]],
    chain: str,
) -> None:
    drafts: list[int] = []

    def guess(input_ids: NDArray[np.intc], /, **_: Any) -> NDArray[np.intc]:
        """Return the next two ids without a processor; the second one is wrong."""
        drafts.append(len(input_ids))
        first = complete(input_ids.tolist(), length=1)
        return np.array([*first, *first, 5][:3], np.intc)

    remote = RemoteLogitsProcessor([*CHAINS[chain], *WORDS], client=client)
    drafting = load(draft_model=guess)
    for prompt in prompts[:3]:
        assert complete(prompt, remote, llm=drafting) == complete(prompt, remote)
    assert drafts


@pytest.mark.parametrize("at", [0, 1, 5, NEW - 1])
@pytest.mark.parametrize("stream", [False, True])
def test_a_failure_is_raised_by_the_completion(
    client: Client, model: Llama, complete: Callable[..., list[int]], prompts: list[list[int]], at: int, stream: bool
) -> None:
    from llama_cpp import LogitsProcessorList

    processors = LogitsProcessorList([RemoteLogitsProcessor([(RaisesAfter, {"at": at}), *WORDS], client=client)])
    with pytest.raises(RequestsFailed, match="too many output ids") as failed:
        list(model.create_completion(prompts[0], max_tokens=NEW, logits_processor=processors, stream=stream))
    assert "in edit" in str(failed.value)
    assert sys.getprofile() is None
    assert complete(prompts[0], Local(WORDS, prompts[0])) == complete(
        prompts[0], RemoteLogitsProcessor(WORDS, client=client)
    ), "the model still works"


def test_a_refusal_is_raised_by_a_completion_of_one_id(client: Client, complete: Callable[..., list[int]]) -> None:
    with pytest.raises(NotFound, match="no_such_thing"):
        complete([20], RemoteLogitsProcessor([("no_such_thing", {})], client=client), length=1)


def test_generate_and_sample_by_hand(client: Client, model: Llama) -> None:
    from llama_cpp import LogitsProcessorList

    remote = RemoteLogitsProcessor([(ForcesLengths, {})], client=client)
    processors = LogitsProcessorList([remote])
    ids = model.generate([20, 21, 22], temp=0.0, logits_processor=processors)
    assert [next(ids) for _ in range(3)] == [103, 101, 102]
    ids.close()
    model.reset()
    model._sampler = None
    sampled = []
    for token_ids in ([20, 21, 22, 23], [30], [31]):
        model.eval(token_ids)
        sampled.append(model.sample(temp=0.0, logits_processor=processors))
    assert sampled == [104, 101, 102]
    remote.close()
    assert model.sample(temp=0.0, logits_processor=processors) == 106


def test_with_a_bias_llama_cpp_python_runs_no_processor(complete: Callable[..., list[int]]) -> None:
    """docs/engines/llama-cpp.md states this limit. If this test fails, remove it from that page."""
    called: list[int] = []

    def processor(input_ids: NDArray[np.intc], scores: NDArray[np.single]) -> NDArray[np.single]:
        called.append(len(input_ids))
        return scores

    complete([20], processor, length=3)
    assert called == [1, 2, 3]
    complete([20], processor, length=3, logit_bias={"0": -100.0, "1": -100.0, "2": -100.0})
    assert called == [1, 2, 3]
