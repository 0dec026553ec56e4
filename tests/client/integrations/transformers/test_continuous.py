"""Continuous batching through the service, compared with single requests and the same processors in this process."""

from __future__ import annotations

import logging
import time
from functools import cache
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from transformers import (
    ContinuousBatchingConfig,
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    Qwen2ForCausalLM,
)

from logitport import Client, CustomLogitProcessor, InvalidArgument
from logitport.integrations import transformers as plain
from logitport.integrations.transformers.continuous import RemoteLogitsProcessor
from logitport_builtins import DisallowedTokens, NoRepeatNGram, ThinkingBudget
from tests.shipped_processors import CountsCalls, ForcesLengths, RaisesAfter, Tilt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from transformers import ContinuousBatchingManager

    Chain = list[tuple[type[CustomLogitProcessor], dict[str, Any]]]

VOCAB_SIZE, NEW = 512, 64


THINKING = {"thinking_budget": 6, "thinking_start_ids": [7], "thinking_end_ids": [8, 9], "newline_id": 10}
CHAINS: dict[str, Chain] = {
    "disallowed_tokens": [(DisallowedTokens, {"token_ids": list(range(3, VOCAB_SIZE, 3))})],
    "thinking_budget": [(ThinkingBudget, THINKING)],
    "no_repeat_ngram": [(NoRepeatNGram, {"ngram_size": 1, "window_size": 40})],
    "reads logits": [(Tilt, {"by": 4.0})],
    "counts calls": [(CountsCalls, {})],
}
CHAINS["nothing"] = []
CHAINS["a chain"] = [*CHAINS["reads logits"], *CHAINS["disallowed_tokens"], *CHAINS["no_repeat_ngram"]]

PROMPTS = [
    [*torch.randint(20, VOCAB_SIZE, (2 + 5 * n,), generator=torch.Generator().manual_seed(n)).tolist(), 7]
    for n in range(8)
]
LENGTHS = [64, 9, 64, 1, 40, 64, 23, 64]


class LocalRequestChain(LogitsProcessor):
    """A chain that runs on the tensors of one request."""

    def __init__(self, chain: Chain, prompt: list[int]) -> None:
        self.chain = [(processor(), dict(params)) for processor, params in chain]
        self.prompt = prompt

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        scores = scores.clone()
        for processor, params in self.chain:
            params["__req__"] = SimpleNamespace(
                origin_input_ids=self.prompt, output_ids=input_ids[0, len(self.prompt) :].tolist()
            )
            scores = processor(scores, [params])
        return scores


def config(**options: Any) -> GenerationConfig:
    return GenerationConfig(**{"max_new_tokens": NEW, "do_sample": False, "eos_token_id": -1, **options})


def small(**options: Any) -> ContinuousBatchingConfig:
    """Return a configuration with a small cache, which is allocated quickly."""
    return ContinuousBatchingConfig(**{"num_blocks": 64, "max_batch_tokens": 48, **options})


@pytest.fixture(autouse=True, scope="module")
def quiet() -> Iterator[None]:
    """Silence transformers' log of failures, and use one thread: a model this small is faster on one core."""
    logging.getLogger("ContinuousBatchingLogger").setLevel(logging.CRITICAL)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    logging.getLogger("ContinuousBatchingLogger").setLevel(logging.NOTSET)


@pytest.fixture(scope="module")
def reference(model: Qwen2ForCausalLM) -> Callable[..., list[int]]:
    """Return the output of `generate` for prompt n alone, with a chain in this process."""

    @cache
    def run(chain: str, n: int, length: int = NEW) -> list[int]:
        prompt = PROMPTS[n]
        output = model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            generation_config=config(max_new_tokens=length),
            logits_processor=LogitsProcessorList([LocalRequestChain(CHAINS[chain], prompt)]),
        )
        ids: list[int] = output[0, len(prompt) :].tolist()
        return ids

    return run


@pytest.fixture
def started(model: Qwen2ForCausalLM) -> Iterator[Callable[..., ContinuousBatchingManager]]:
    """Start managers with a processor attached; stop them after the test."""
    managers: list[ContinuousBatchingManager] = []

    def start(remote: RemoteLogitsProcessor, **options: Any) -> ContinuousBatchingManager:
        generation = config(**options.pop("generation", {}))
        manager = model.init_continuous_batching(generation, small(**options))
        managers.append(remote.attach(manager))
        manager.start()
        return manager

    yield start
    for manager in managers:
        manager.stop()
        manager.destroy()


def results(manager: ContinuousBatchingManager, count: int) -> dict[str, Any]:
    """Return the results of requests that have ended, by request id."""
    ended: dict[str, Any] = {}
    while len(ended) < count:
        result = manager.get_result(timeout=200)
        assert result is not None
        if result.is_finished():
            ended[result.request_id] = result
    return ended


@pytest.mark.parametrize("chain", ["a chain", "counts calls"])
def test_tokens_equal_those_of_the_same_processors_in_process(
    client: Client, model: Qwen2ForCausalLM, reference: Any, chain: str
) -> None:
    remote = RemoteLogitsProcessor(CHAINS[chain], client=client)
    with remote.attached(model):
        outputs = model.generate_batch(PROMPTS, config(), small())
    assert [output.error for output in outputs.values()] == [None] * 8
    assert [output.generated_tokens for output in outputs.values()] == [reference(chain, n) for n in range(8)]
    assert sum(remote.rows_applied.values()) == 8 * NEW * len(CHAINS[chain])
    assert NEW <= remote.steps < 8 * NEW, "requests share steps"
    assert remote.seconds > 0
    assert "init_continuous_batching" not in vars(model)


@pytest.fixture(scope="module")
def names(server: Any) -> Iterator[dict[str, str]]:
    """The names of this file's classes in requests."""
    shipped = {"Tilt": Tilt, "CountsCalls": CountsCalls, "ForcesLengths": ForcesLengths, "RaisesAfter": RaisesAfter}
    with Client(server.target) as client:
        yield {name: client.register(processor).digest for name, processor in shipped.items()}


def chain_of_request(chain: str, names: dict[str, str]) -> list[Any]:
    """Return the chain in the form that a request passes."""
    builtins = {DisallowedTokens: "disallowed_tokens", ThinkingBudget: "thinking_budget"}
    builtins[NoRepeatNGram] = "no_repeat_ngram"
    return [[builtins.get(processor) or names[processor.__name__], params] for processor, params in CHAINS[chain]]


def test_requests_with_chains_of_their_own_come_and_go(
    client: Client, started: Any, reference: Any, names: dict[str, str]
) -> None:
    chains = [*CHAINS, "counts calls"]
    manager = started(RemoteLogitsProcessor(client=client), max_requests_per_batch=3)
    cancelled = manager.add_request([5, 6], max_new_tokens=10_000, logitport=chain_of_request("counts calls", names))
    ended: dict[str, Any] = {}
    for n, (chain, prompt, length) in enumerate(zip(chains, PROMPTS, LENGTHS, strict=True)):
        if n == 5:
            ended |= results(manager, 2)
            manager.cancel_request(cancelled)
        manager.add_request(prompt, f"request {n}", length, logitport=chain_of_request(chain, names))
    ended |= results(manager, 8 - len(ended))
    for n, (chain, length) in enumerate(zip(chains, LENGTHS, strict=True)):
        assert ended[f"request {n}"].error is None
        assert ended[f"request {n}"].generated_tokens == reference(chain, n, length)


def test_a_requests_own_chain_replaces_the_default(client: Client, started: Any, reference: Any) -> None:
    manager = started(RemoteLogitsProcessor([(ForcesLengths, {})], client=client))
    manager.add_request(PROMPTS[0], "default", 4)
    manager.add_request(PROMPTS[0], "none", 4, logitport=[])
    manager.add_request(PROMPTS[0], "other", 4, logitport=[["disallowed_tokens", {"token_ids": [1]}]])
    outputs = {name: output.generated_tokens for name, output in results(manager, 3).items()}
    assert outputs["default"] == [103, 101, 102, 103]
    assert outputs["none"] == outputs["other"] == reference("nothing", 0, 4)


def test_a_reused_name_is_another_request(client: Client, started: Any) -> None:
    manager = started(RemoteLogitsProcessor([(ForcesLengths, {})], client=client))
    for _ in range(2):
        manager.add_request([20, 21, 22], "same", 3)
        assert results(manager, 1)["same"].generated_tokens == [103, 101, 102]
    manager.add_request([20, 21, 22, 103, 101, 102], "same", 3)
    assert results(manager, 1)["same"].generated_tokens == [106, 101, 102]


@pytest.mark.parametrize("chain", ["no_repeat_ngram", "counts calls"])
def test_offloaded_requests_keep_the_state_of_their_processors(
    client: Client, started: Any, reference: Any, monkeypatch: pytest.MonkeyPatch, chain: str
) -> None:
    offloaded: list[int] = []
    manager = started(RemoteLogitsProcessor(CHAINS[chain], client=client), page_size=16, num_blocks=12)
    while manager.batch_processor is None:
        time.sleep(0.01)
    offloading = manager.batch_processor.offloading_manager
    offload = offloading.offload_requests
    monkeypatch.setattr(offloading, "offload_requests", lambda: offloaded.append(1) or offload())
    for n, prompt in enumerate(PROMPTS[:5]):
        manager.add_request(prompt, f"request {n}", NEW)
    outputs = results(manager, 5)
    assert offloaded
    for n in range(5):
        assert outputs[f"request {n}"].error is None
        assert outputs[f"request {n}"].generated_tokens == reference(chain, n)


def test_several_sequences_of_one_prompt_are_several_requests(client: Client, started: Any) -> None:
    several = {"num_return_sequences": 3, "do_sample": True}
    manager = started(RemoteLogitsProcessor([(ForcesLengths, {})], client=client), generation=several)
    manager.add_request(PROMPTS[1], "one", 4)
    outputs = results(manager, 3)
    assert len(outputs) == 3
    assert [output.generated_tokens for output in outputs.values()] == [[108, 101, 102, 103]] * 3


@pytest.mark.parametrize("at", [0, 1, 7])
def test_a_failure_ends_only_its_request(
    client: Client, started: Any, reference: Any, names: dict[str, str], at: int
) -> None:
    manager = started(RemoteLogitsProcessor(CHAINS["reads logits"], client=client))
    manager.add_request(PROMPTS[0], "fails", NEW, logitport=[[names["RaisesAfter"], {"at": at}]])
    manager.add_request(PROMPTS[1], "other", NEW)
    outputs = results(manager, 2)
    assert "ProcessorFailed" in outputs["fails"].error
    assert "too many output ids" in outputs["fails"].error
    assert "in edit" in outputs["fails"].error
    assert outputs["fails"].generated_tokens == reference("nothing", 0)[:at]
    assert outputs["other"].error is None
    assert outputs["other"].generated_tokens == reference("reads logits", 1)


def test_a_mistyped_key_fails_its_request(client: Client, started: Any, reference: Any) -> None:
    """transformers itself refuses keys that no processor reads."""
    manager = started(RemoteLogitsProcessor(CHAINS["reads logits"], client=client))
    manager.add_request(PROMPTS[0], "mistyped", 4, logitprot=[])
    manager.add_request(PROMPTS[1], "other", NEW)
    outputs = results(manager, 2)
    assert "logitprot" in outputs["mistyped"].error
    assert "'logitport'" in outputs["mistyped"].error
    assert outputs["other"].generated_tokens == reference("reads logits", 1)


@pytest.mark.parametrize(
    ("chain", "message"),
    [
        ([["no_such_thing", {}]], "NotFound: no built-in is called 'no_such_thing'"),
        ([["disallowed_tokens", {"token_ids": "x"}]], "InvalidArgument: "),
        (["disallowed_tokens"], "InvalidArgument: logitport[0]"),
        ([{}], "InvalidArgument: logitport[0]"),
        ("disallowed_tokens", "expected list"),
    ],
)
def test_only_the_refused_request_ends(client: Client, started: Any, reference: Any, chain: Any, message: str) -> None:
    manager = started(RemoteLogitsProcessor(client=client))
    manager.add_request(PROMPTS[0], "refused", 5, logitport=chain)
    manager.add_request(PROMPTS[1], "other", 5)
    outputs = results(manager, 2)
    assert message in outputs["refused"].error
    assert outputs["refused"].generated_tokens == []
    assert outputs["other"].error is None
    assert outputs["other"].generated_tokens == reference("nothing", 1, 5)


def test_without_a_server_only_requests_with_processors_end(start_server: Any, started: Any, reference: Any) -> None:
    server, chained = start_server(), [["disallowed_tokens", {"token_ids": [1]}]]
    with Client(server.target, timeout=4) as client:
        manager = started(RemoteLogitsProcessor(client=client))
        for round_ in range(2):
            manager.add_request(PROMPTS[0], f"chained {round_}", 5, logitport=chained)
            manager.add_request(PROMPTS[1], f"other {round_}", 5)
            outputs = results(manager, 2)
            assert outputs[f"other {round_}"].generated_tokens == reference("nothing", 1, 5)
            if round_ == 0:
                assert outputs["chained 0"].error is None
                server.stop()
        assert "ServerUnavailable" in outputs["chained 1"].error


def test_a_persistent_manager_stays_attached(client: Client, model: Qwen2ForCausalLM) -> None:
    remote = RemoteLogitsProcessor([(ForcesLengths, {})], client=client)
    try:
        with remote.attached(model):
            for _ in range(2):
                (output,) = model.generate_batch(
                    [[20, 21]], config(max_new_tokens=3), small(), persistent_manager=True
                ).values()
                assert output.generated_tokens == [102, 101, 102]
    finally:
        model.destroy_cached_continuous_batching_manager()


def test_processors_come_before_temperature(client: Client, model: Qwen2ForCausalLM) -> None:
    manager = model.init_continuous_batching(config(do_sample=True, temperature=0.5, top_k=5), small())
    RemoteLogitsProcessor(client=client).attach(manager)
    kinds = [type(one).__name__ for one in manager.logit_processor.logits_processor]
    assert kinds == ["_Hook", "TemperatureLogitsWarper", "TopKLogitsWarper"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"use_async_batching": True}, "use_async_batching=False"),
        ({"default_compile_level": 1}, "compiled steps"),
    ],
)
def test_unsupported_options_are_refused(
    client: Client, model: Qwen2ForCausalLM, options: dict[str, Any], message: str
) -> None:
    manager = model.init_continuous_batching(config(), small(**options))
    with pytest.raises(InvalidArgument, match=message):
        RemoteLogitsProcessor(client=client).attach(manager)


def test_graphs_ranks_and_late_attachment_are_refused(client: Client, model: Qwen2ForCausalLM) -> None:
    remote = RemoteLogitsProcessor(client=client)
    manager = model.init_continuous_batching(config(), small())
    manager.continuous_batching_config.use_cuda_graph = (False, True)  # a CPU has none
    with pytest.raises(InvalidArgument, match="use_cuda_graph=False"):
        remote.attach(manager)
    manager.continuous_batching_config.use_cuda_graph = (False, False)
    manager.distributed_helper.tp_size = 2
    with pytest.raises(InvalidArgument, match="tensor-parallel ranks"):
        remote.attach(manager)
    manager.distributed_helper.tp_size = 1
    manager.warmup()
    with pytest.raises(InvalidArgument, match="warmed up"):
        remote.attach(manager)


def test_a_manager_has_one_processor(client: Client, model: Qwen2ForCausalLM) -> None:
    remote = RemoteLogitsProcessor(client=client)
    manager = remote.attach(model.init_continuous_batching(config(), small()))
    assert remote.attach(manager) is manager
    with pytest.raises(InvalidArgument, match="another RemoteLogitsProcessor is attached"):
        RemoteLogitsProcessor(client=client).attach(manager)


def test_the_hook_for_generate_names_the_right_one(client: Client, model: Qwen2ForCausalLM) -> None:
    of_generate = plain.RemoteLogitsProcessor([(ForcesLengths, {})], client=client)
    manager = model.init_continuous_batching(config(), small())
    manager.logit_processor.logits_processor.append(of_generate)
    manager.logit_processor.do_processing = True
    manager.start()
    try:
        manager.add_request([20, 21], "one", 3)
        assert "use logitport.integrations.transformers.continuous" in results(manager, 1)["one"].error
    finally:
        manager.stop()


def test_a_tenant_reaches_the_service(serving: Any, started: Any) -> None:
    """This server refuses requests without a tenant."""
    with serving("--require-tenant") as strict, Client(strict.target) as client:
        manager = started(RemoteLogitsProcessor(CHAINS["disallowed_tokens"], client=client))
        manager.add_request(PROMPTS[0], "without", 4)
        manager.add_request(PROMPTS[0], "with", 4, logitport_tenant="acme")
        outputs = results(manager, 2)
        assert "--require-tenant" in outputs["without"].error
        assert outputs["with"].error is None
        manager = started(RemoteLogitsProcessor(CHAINS["disallowed_tokens"], tenant="acme", client=client))
        manager.add_request(PROMPTS[0], "default", 4)
        assert results(manager, 1)["default"].error is None
