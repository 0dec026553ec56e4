"""MLX-LM generates through the service, compared with the same processors in its own process."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from logitport import Client, CustomLogitProcessor, InvalidArgument, NotFound, RequestsFailed
from logitport.integrations.mlx_lm import RemoteLogitsProcessor
from logitport_builtins import DisallowedTokens, NoRepeatNGram, ThinkingBudget
from tests.engines.checkpoint import EOS, VOCAB_SIZE
from tests.engines.mlx_lm.conftest import NEW
from tests.shipped_processors import CountsCalls, ForcesLengths, RaisesAfter, Tilt

if TYPE_CHECKING:
    from collections.abc import Callable

    Chain = list[tuple[type[CustomLogitProcessor], dict[str, Any]]]
    Complete = Callable[..., list[int]]


class Local:
    """A chain as MLX-LM's own kind of processor, for one prompt."""

    def __init__(self, chain: Chain, prompt: list[int]) -> None:
        self.chain = [(processor(), dict(params)) for processor, params in chain]
        self.prompt = prompt

    def __call__(self, tokens: Any, logits: Any) -> Any:
        import mlx.core as mx

        values = torch.from_numpy(np.array(logits.astype(mx.float32)))
        output = tokens.tolist()[len(self.prompt) :]
        for processor, params in self.chain:
            params["__req__"] = SimpleNamespace(origin_input_ids=self.prompt, output_ids=output)
            values = processor(values, [params])
        return mx.array(values.numpy()).astype(logits.dtype)


THINKING = {"thinking_budget": 6, "thinking_start_ids": [7], "thinking_end_ids": [8, 9], "newline_id": 10}
CHAINS: dict[str, Chain] = {
    "disallowed_tokens": [(DisallowedTokens, {"token_ids": list(range(3, VOCAB_SIZE, 3))})],
    "thinking_budget": [(ThinkingBudget, THINKING)],
    "no_repeat_ngram": [(NoRepeatNGram, {"ngram_size": 1, "window_size": 40})],
    "reads logits": [(Tilt, {"by": 4.0})],
    "counts calls": [(CountsCalls, {})],
}
CHAINS["a chain"] = [*CHAINS["reads logits"], *CHAINS["disallowed_tokens"], *CHAINS["no_repeat_ngram"]]
# Without this the random model may end early.
GOES_ON: Chain = [(DisallowedTokens, {"token_ids": [EOS]})]
PROMPT = [20, 21, 22]


@pytest.mark.parametrize("chain", CHAINS)
def test_tokens_equal_those_of_the_same_processors_in_process(
    client: Client, complete: Complete, prompts: list[list[int]], chain: str
) -> None:
    processors = [*CHAINS[chain], *GOES_ON]
    remote = RemoteLogitsProcessor(processors, client=client)
    changed = 0
    for prompt in prompts:
        through_service = complete(prompt, remote)
        assert len(through_service) == NEW
        assert through_service == complete(prompt, Local(processors, prompt))
        changed += through_service != complete(prompt, Local(GOES_ON, prompt))
    assert changed == len(prompts)
    assert remote.steps == len(prompts) * (NEW + 1), "MLX-LM computes one step more than it yields"
    assert sum(remote.rows_applied.values()) == remote.steps * len(processors)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_the_dtypes_of_models(client: Client, load: Any, complete: Complete, dtype: str) -> None:
    import mlx.core as mx

    model, tokenizer = load()
    model.set_dtype(getattr(mx, dtype))
    seen: list[Any] = []

    def records(_: Any, logits: Any) -> Any:
        seen.append(logits)
        return logits

    chain = [*CHAINS["a chain"], *GOES_ON]
    remote = RemoteLogitsProcessor(chain, client=client)
    generated = complete(PROMPT, records, remote, records, pair=(model, tokenizer))
    assert generated == complete(PROMPT, Local(chain, PROMPT), pair=(model, tokenizer))
    assert {one.dtype for one in seen} == {getattr(mx, dtype)}
    unbanned = (np.arange(VOCAB_SIZE) % 3 != 0) & (np.arange(VOCAB_SIZE) != EOS)
    plain = RemoteLogitsProcessor([*CHAINS["disallowed_tokens"], *GOES_ON], client=client)
    seen.clear()
    complete(PROMPT, records, plain, records, pair=(model, tokenizer), length=2)
    before, after = (np.array(one.view(mx.uint16))[0] for one in seen[:2])
    assert np.array_equal(before[unbanned], after[unbanned]), "ids without an edit keep their bits"
    assert not np.array_equal(before, after)


def test_each_generation_is_a_new_request_whatever_its_prompt(client: Client, complete: Complete) -> None:
    remote = RemoteLogitsProcessor([(ForcesLengths, {})], client=client)
    first = complete(PROMPT, remote, length=4)
    assert first == [103, 101, 102, 103]
    assert complete([*PROMPT, *first], remote, length=2) == [107, 101]
    assert complete([*PROMPT, *first, 107], remote, length=2) == [108, 101]
    assert complete(PROMPT, remote, length=2) == [103, 101]


def test_streams_alternate(client: Client, loaded: Any) -> None:
    from mlx_lm import stream_generate

    remote = RemoteLogitsProcessor([(ForcesLengths, {})], client=client)
    streams = [stream_generate(*loaded, PROMPT[:n], max_tokens=4, logits_processors=[remote]) for n in (3, 3, 2)]
    tokens = [[one.token for one in step] for step in zip(*streams, strict=True)]
    assert tokens == [[103, 103, 102], [101, 101, 101], [102, 102, 102], [103, 103, 103]]


def test_prompts_in_chunks_and_a_prompt_cache(client: Client, complete: Complete, loaded: Any) -> None:
    from mlx_lm.models.cache import make_prompt_cache

    chain = [*CHAINS["a chain"], *GOES_ON]
    remote, prompt = RemoteLogitsProcessor(chain, client=client), list(range(20, 60))
    expected = complete(prompt, Local(chain, prompt))
    assert complete(prompt, remote, prefill_step_size=7) == expected
    cache = make_prompt_cache(loaded[0])
    assert complete(prompt, remote, prompt_cache=cache) == expected
    # docs/engines/mlx-lm.md states this limit: the history begins with the ids of the call.
    counting = RemoteLogitsProcessor([(ForcesLengths, {})], client=client)
    assert complete([30, 31], counting, prompt_cache=cache, length=2) == [102, 101]


def test_own_loops_around_generate_step(client: Client, loaded: Any) -> None:
    import mlx.core as mx
    from mlx_lm.generate import generate_step

    remote = RemoteLogitsProcessor([(ForcesLengths, {})], client=client)
    steps = generate_step(mx.array(PROMPT), loaded[0], max_tokens=3, logits_processors=[remote])
    assert [token for token, _ in steps] == [103, 101, 102]


def test_a_batch(client: Client, loaded: Any, complete: Complete, prompts: list[list[int]]) -> None:
    from mlx_lm.generate import batch_generate

    chain = [*CHAINS["a chain"], *GOES_ON]
    remote = RemoteLogitsProcessor(chain, client=client)
    texts = batch_generate(*loaded, prompts[:4], max_tokens=[8, 3, 12, 5], logits_processors=[remote]).texts
    assert [[int(word.removeprefix("w")) for word in text.split()] for text in texts] == [
        complete(prompt, Local(chain, prompt), length=length)
        for prompt, length in zip(prompts[:4], [8, 3, 12, 5], strict=True)
    ]


def test_the_session_knows_the_model(
    client: Client, loaded: Any, complete: Complete, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlx_lm.generate import batch_generate

    opened: list[dict[str, Any]] = []
    open_session = client.session
    monkeypatch.setattr(client, "session", lambda **options: opened.append(options) or open_session(**options))
    remote = RemoteLogitsProcessor([], client=client, tokenizer_id="team/model")
    complete(PROMPT, remote, length=1)
    complete(PROMPT, remote, length=1, draft_model=loaded[0])
    batch_generate(*loaded, [PROMPT], max_tokens=1, logits_processors=[remote])
    for options in opened:
        expected = {"vocab_size": VOCAB_SIZE, "tokenizer_id": "team/model", "eos_token_ids": [EOS]}
        assert options.items() >= expected.items()
    assert len(opened) == 3


@pytest.mark.parametrize("chain", ["disallowed_tokens", "thinking_budget", "no_repeat_ngram", "a chain"])
@pytest.mark.parametrize("seed", [0, 1], ids=["drafts are accepted", "drafts are rejected"])
def test_a_draft_model_changes_nothing(
    client: Client, complete: Complete, load: Any, prompts: list[list[int]], chain: str, seed: int
) -> None:
    draft_model = load(seed)[0]
    remote = RemoteLogitsProcessor([*CHAINS[chain], *GOES_ON], client=client)
    for prompt in prompts[:3]:
        drafted = complete(prompt, remote, draft_model=draft_model, num_draft_tokens=3)
        assert drafted == complete(prompt, Local([*CHAINS[chain], *GOES_ON], prompt))


def test_with_a_draft_model_the_history_has_the_whole_prompt(client: Client, complete: Complete, load: Any) -> None:
    """MLX-LM 0.32.2 passes only the last id of the prompt."""
    remote, lengths = RemoteLogitsProcessor([(ForcesLengths, {})], client=client), []

    def records(tokens: Any, logits: Any) -> Any:
        lengths.append(len(tokens))
        return logits

    assert complete(PROMPT, remote, records, draft_model=load(1)[0], length=4) == [103, 101, 102, 103]
    assert min(lengths) == 1


def test_state_that_cannot_be_taken_back_is_an_error_with_rejected_drafts(
    client: Client, complete: Complete, load: Any
) -> None:
    remote = RemoteLogitsProcessor([(CountsCalls, {}), *GOES_ON], client=client)
    with pytest.raises(RequestsFailed, match=r"StateLost: .*CountsCalls"):
        complete(PROMPT, remote, draft_model=load(1)[0])


def test_a_chain_that_changes_nothing_accepts_the_same_drafts(client: Client, loaded: Any, prompts: Any) -> None:
    from mlx_lm import stream_generate

    remote = RemoteLogitsProcessor([("disallowed_tokens", {"token_ids": []})], client=client)

    def drafted(*processors: Any) -> list[bool]:
        options = {"draft_model": loaded[0], "logits_processors": list(processors), "max_tokens": 20}
        return [one.from_draft for one in stream_generate(*loaded, prompts[0], **options)]

    assert drafted() == drafted(remote)
    assert any(drafted())


@pytest.mark.parametrize("at", [0, 1, 5, NEW - 1])
def test_a_failure_is_raised_after_the_ids_before_it(
    client: Client, loaded: Any, complete: Complete, prompts: list[list[int]], at: int
) -> None:
    from mlx_lm import stream_generate

    failing = RemoteLogitsProcessor([(RaisesAfter, {"at": at}), *GOES_ON], client=client)
    expected = complete(prompts[0], Local(GOES_ON, prompts[0]))
    responses = stream_generate(*loaded, prompts[0], max_tokens=NEW, logits_processors=[failing])
    tokens: list[int] = []
    with pytest.raises(RequestsFailed, match="too many output ids") as failed:
        tokens.extend(one.token for one in responses)
    assert "in edit" in str(failed.value)
    assert tokens == expected[:at]
    assert complete(prompts[0], RemoteLogitsProcessor(GOES_ON, client=client)) == expected


def test_a_failure_of_the_step_that_is_dropped_is_none(client: Client, complete: Complete) -> None:
    failing = RemoteLogitsProcessor([(RaisesAfter, {"at": 5}), *GOES_ON], client=client)
    assert len(complete(PROMPT, failing, length=5)) == 5
    with pytest.raises(RequestsFailed, match="too many output ids"):
        complete(PROMPT, failing, length=6)


def test_refusals_are_raised(client: Client, complete: Complete, load: Any) -> None:
    with pytest.raises(NotFound, match="no_such_thing"):
        complete([20], RemoteLogitsProcessor([("no_such_thing", {})], client=client), length=1)
    everything = [("disallowed_tokens", {"token_ids": list(range(VOCAB_SIZE))})]
    with pytest.raises(InvalidArgument, match="deny every id, so MLX-LM"):
        complete([20], RemoteLogitsProcessor(everything, client=client), length=1)
    with pytest.raises(InvalidArgument, match="deny every id, so MLX-LM"):
        complete([20], RemoteLogitsProcessor(everything, client=client), length=1, draft_model=load()[0])


def test_the_report_of_the_latest_generation(client: Client, complete: Complete) -> None:
    remote = RemoteLogitsProcessor([("disallowed_tokens", {"token_ids": [EOS]})], client=client)
    assert remote.reports == []
    complete(PROMPT, remote, length=4)
    (report,) = remote.reports
    assert [entry.name for entry in report.processors] == ["disallowed_tokens"]
