"""The objects for vLLM's processors: sampling parameters, configuration, instances."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch

from logitport import History, InvalidArgument, PayloadError
from logitport_session.dialects import RequestContext, make_dialect
from logitport_session.dialects.vllm import objects
from logitport_session.dialects.vllm.objects import check_constructor, construct, sampling_params
from logitport_session.stubs.vllm.v1.sample.logits_processor import AdapterLogitsProcessor, LogitsProcessor
from logitport_session.stubs.vllm.v1.worker.gpu.sample.logits_processor import LogitsProcessor as SlotLogitsProcessor

CONTEXT = RequestContext("r", History([1]), {}, 32, "a/tokenizer", (7,), 5)


def test_defaults_are_those_of_vllm() -> None:
    made = sampling_params({}, {})
    assert (made.temperature, made.top_p, made.top_k, made.min_p, made.min_tokens) == (1.0, 1.0, 0, 0.0, 0)
    assert (made.max_tokens, made.stop, made.stop_token_ids, made.bad_words) == (16, [], [], [])
    assert (made.logit_bias, made.allowed_token_ids, made.extra_args, made.seed) == (None, None, None, None)


def test_params_join_the_extra_args_of_the_engine() -> None:
    values = {"extra_args": {"mine": 1, "yours": 1}, "temperature": 0.5}
    params: dict[str, Any] = {"yours": [2]}
    made = sampling_params(values, params)
    assert (made.extra_args, made.temperature) == ({"mine": 1, "yours": [2]}, 0.5)
    made.extra_args["yours"].append(3)
    assert params == {"yours": [2]}
    assert values["extra_args"] == {"mine": 1, "yours": 1}


def test_names_of_other_engines() -> None:
    values = {"max_new_tokens": 128, "min_new_tokens": 20, "json_schema": "{}", "temperature": None, "_private": 1}
    made = sampling_params(values, {})
    assert (made.max_tokens, made.min_tokens, made.temperature, made.extra_args) == (128, 20, 1.0, None)


def test_types_that_json_lacks() -> None:
    values = {
        "logit_bias": {"5": 1.5},
        "structured_outputs": {"regex": "a+", "_backend": None},
        "output_kind": 2,
        "stop": "end",
    }
    made = sampling_params(values, {})
    assert made.logit_bias == {5: 1.5}
    assert made.structured_outputs.regex == "a+"
    assert made.output_kind.name == "FINAL_ONLY"
    assert made.stop == ["end"]


@pytest.mark.parametrize(("ignore_eos", "stops", "eos"), [(False, {3, 8}, 7), (True, {3}, None)])
def test_ids_that_end_a_sequence(ignore_eos: bool, stops: set[int], eos: int | None) -> None:
    made = sampling_params({"stop_token_ids": [3, 3], "ignore_eos": ignore_eos}, {}, (7, 8))
    assert made.all_stop_token_ids == {3, 7, 8}
    assert (set(made.stop_token_ids), made.eos_token_id) == (stops, eos)


def test_a_temperature_is_adjusted_as_in_vllm() -> None:
    assert sampling_params({"temperature": 0.001}, {}).temperature == 0.01
    greedy = sampling_params({"temperature": 0, "top_p": 0.5, "min_p": 0.1}, {})
    assert (greedy.top_p, greedy.min_p, greedy.sampling_type.name) == (1.0, 0.0, "GREEDY")


@pytest.mark.parametrize(
    "values",
    [
        {"temperature": "hot"},
        {"extra_args": [1]},
        {"logit_bias": {"a": 1}},
        {"logit_bias": 3},
        {"structured_outputs": {"regexes": 1}},
        {"output_kind": 9},
        {"stop_token_ids": 3},
    ],
)
def test_values_that_vllm_rejects(values: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match="sampling_params cannot be converted to vLLM's SamplingParams: "):
        sampling_params(values, {})


class StoresArguments:
    """Keeps its constructor's arguments."""

    def __init__(self, vllm_config: Any, device: Any, is_pin_memory: bool, *, more: int = 0) -> None:
        self.config, self.device, self.pinned, self.more = vllm_config, device, is_pin_memory, more


def test_an_instance_is_created_as_in_vllm() -> None:
    made = construct(StoresArguments, CONTEXT)
    assert (made.device, made.pinned) == (torch.device("cpu"), False)
    assert made.config.scheduler_config.max_num_seqs == 5
    model = made.config.model_config
    assert (model.get_vocab_size(), model.hf_config.vocab_size, model.hf_config.eos_token_id) == (32, 32, 7)
    assert (model.model, model.tokenizer, model.trust_remote_code) == ("a/tokenizer", "a/tokenizer", False)
    assert made.config.speculative_config is None


def test_an_unknown_field_of_the_configuration_raises() -> None:
    config = construct(StoresArguments, RequestContext("r", History(), {}, 8)).config
    with pytest.raises(AttributeError, match=r"vllm_config.lora_config is not known here: .* only model_config"):
        config.lora_config  # noqa: B018
    with pytest.raises(AttributeError, match=r"model_config.tokenizer is not known here"):
        config.model_config.tokenizer  # noqa: B018
    assert not hasattr(config, "__deepcopy__")


def test_a_constructor_that_vllm_could_not_call() -> None:
    class NeedsTokenizer:
        def __init__(self, vllm_config: Any, device: Any, is_pin_memory: bool, tokenizer: str) -> None:
            self.tokenizer = tokenizer

    with pytest.raises(PayloadError, match=r"creating a .*NeedsTokenizer would fail: .*'tokenizer'.*functools.partial"):
        check_constructor(NeedsTokenizer)
    with_tokenizer = functools.partial(NeedsTokenizer, tokenizer="t")
    check_constructor(with_tokenizer)
    assert construct(with_tokenizer, CONTEXT).tokenizer == "t"


@pytest.mark.parametrize(
    ("base", "arguments"),
    [
        (LogitsProcessor, "vllm_config, device, is_pin_memory"),
        (AdapterLogitsProcessor, "vllm_config, device, is_pin_memory"),
        (SlotLogitsProcessor, "vllm_config, req_states"),
    ],
)
def test_a_constructor_with_too_few_arguments(base: Any, arguments: str) -> None:
    class TakesOne(base):  # type: ignore[misc]
        def __init__(self, config: Any) -> None: ...

        def apply(self, logits: Any, ctx: Any = None) -> Any: ...

    with pytest.raises(PayloadError, match=rf"define __init__\(self, {arguments}\)$"):
        make_dialect(TakesOne, "its name", shipped=True)


def test_a_constructor_that_raises() -> None:
    class Raises:
        def __init__(self, vllm_config: Any, device: Any, is_pin_memory: bool) -> None:
            raise SystemExit(3)

    with pytest.raises(PayloadError, match=r"creating a .*Raises raised SystemExit: 3"):
        construct(Raises, CONTEXT)


def test_a_shipped_instance_is_copied() -> None:
    shipped = StoresArguments([1], None, False)
    made = construct(shipped, CONTEXT)
    made.config.append(2)
    assert shipped.config == [1]
    with pytest.raises(PayloadError, match="ship the class"):
        construct(StoresArguments((n for n in [1]), None, False), CONTEXT)


def test_modules_that_are_not_installed_have_stubs() -> None:
    interface = objects.module("vllm.v1.sample.logits_processor.interface")
    assert interface.MoveDirectionality.SWAP
    with pytest.raises(ImportError):
        objects.module("vllm.engine")
