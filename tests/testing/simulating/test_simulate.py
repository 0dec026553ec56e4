"""`simulate`: its records, its models, and the ids that it chooses."""

from __future__ import annotations

import json
import math
from importlib.util import find_spec
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from logitport import (
    CustomLogitProcessor,
    EditProcessor,
    InvalidArgument,
    PayloadError,
    ProcessorFailed,
    ProcessorWarning,
)
from logitport.edits import EditKind
from logitport_testing import ToyModel, simulate
from tests.tokenizer_files import write_trained

if TYPE_CHECKING:
    from pathlib import Path

VOCAB = 8
# Of one step: id i has the logit i.
RISING = np.arange(VOCAB, dtype=np.float32)[None]


class Forces(EditProcessor):
    def edit(self, request: Any, edits: Any) -> None:
        edits.force(request.params["token_id"])


class Doubles(CustomLogitProcessor):
    def __call__(self, logits: torch.Tensor, custom_param_list: Any = None) -> torch.Tensor:
        return logits * 2


class Fails(EditProcessor):
    def edit(self, request: Any, edits: Any) -> None:
        if request.history.last_output is not None:
            raise RuntimeError("after one id")
        edits.deny([7])


class Reports(EditProcessor):
    def edit(self, request: Any, edits: Any) -> None:
        length = len(request.history.output_token_ids)
        edits.event("step", length=length, tag="<b>")


@pytest.mark.parametrize("reader", [[], [(Doubles, {})]])
def test_events_of_a_processor(reader: list[Any]) -> None:
    simulated = simulate([(Reports, {}), ("disallowed_tokens", {"token_ids": [7]}), *reader], np.repeat(RISING, 3, 0))
    for index, step in enumerate(simulated.steps):
        expected = (("step", {"length": index, "tag": "<b>"}),)
        assert [record.events for record in step.processors] == [expected, *[()] * (1 + len(reader))]
    (shown, *_) = simulated.to_json()["steps"][2]["processors"]
    assert shown["events"] == [{"name": "step", "values": {"length": 2, "tag": "<b>"}}]
    assert "step(length=2, tag=&lt;b&gt;)" in simulated._repr_html_()


def test_a_processor_that_denies() -> None:
    (step,) = simulate([("disallowed_tokens", {"token_ids": [7, 6]})], RISING).steps
    (record,) = step.processors
    assert (record.processor, record.place, record.called, record.reads_logits) == ("disallowed_tokens", 0, True, False)
    assert record.denied.tolist() == [6, 7]
    assert record.forced is None
    assert record.changed
    assert not record.biased.size
    assert record.before.top_ids.tolist() == [7, 6, 5, 4, 3, 2, 1, 0]
    assert record.after.top_ids.tolist() == [5, 4, 3, 2, 1, 0]
    assert record.after.top_logits.tolist() == [5, 4, 3, 2, 1, 0]
    assert (record.before.allowed, record.after.allowed) == (8, 6)
    weights = np.exp(np.arange(8.0))
    assert record.moved == pytest.approx(weights[6:].sum() / weights.sum())
    assert record.before.top_probabilities.tolist() == pytest.approx((weights / weights.sum())[::-1].tolist())
    assert record.before.entropy == pytest.approx(-(weights / weights.sum() * np.log(weights / weights.sum())).sum())
    ((kind, ids, values),) = record.edits
    assert (kind, ids.tolist(), values) == (EditKind.DENY, [7, 6], None)
    assert step.token_id == 5
    assert step.probability == record.after.top_probabilities[0]


def test_a_processor_that_biases_and_one_that_reads() -> None:
    chain = [("logit_bias", {"logit_bias": {"2": 1.5, "3": -1.0}}), (Doubles, {})]
    (step,) = simulate(chain, RISING, top_k=2).steps
    bias, doubles = step.processors
    assert (bias.biased.tolist(), bias.bias.tolist()) == ([2, 3], [1.5, -1.0])
    assert doubles.processor == "Doubles"
    assert doubles.reads_logits
    assert doubles.edits == ()
    assert doubles.biased.tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert doubles.bias.tolist() == [1, 3.5, 2, 4, 5, 6, 7]
    assert doubles.before.top_ids.tolist() == [7, 6]
    assert step.raw.top_ids.tolist() == [7, 6]


def test_a_processor_that_forces() -> None:
    chain = [
        ("disallowed_tokens", {"token_ids": [7]}),
        (Forces, {"token_id": 2}),
        ("disallowed_tokens", {"token_ids": [1]}),
    ]
    (step,) = simulate(chain, RISING).steps
    first, forces, last = step.processors
    assert forces.forced == 2
    assert not forces.denied.size
    assert not forces.restored.size
    assert forces.changed
    assert forces.after.top_logits.tolist() == [0.0]
    assert forces.after.entropy == 0.0
    assert first.forced is None
    assert last.forced is None  # there was one id before it
    assert not last.changed
    assert step.token_id == 2


def test_the_history_grows_by_chosen_or_given_ids() -> None:
    rows, chain = np.repeat(RISING, 4, axis=0), [("no_repeat_ngram", {"ngram_size": 1})]
    result = simulate(chain, rows, [7, 5])
    assert (result.prompt_token_ids, result.output_token_ids) == ((7, 5), (6, 4, 3, 2))
    assert (result.chain, result.vocab_size, result.ended) == (tuple(chain), VOCAB, "length")
    assert simulate(chain, torch.from_numpy(rows).bfloat16(), output=[1, 0]).output_token_ids == (1, 0, 7, 6)


def test_an_id_that_ends_the_sequence() -> None:
    result = simulate([], np.repeat(RISING, 3, axis=0), eos_token_ids=[7])
    assert (result.ended, result.output_token_ids) == ("eos", (7,))
    result = simulate([("min_tokens", {"min_tokens": 1})], np.repeat(RISING, 3, axis=0), eos_token_ids=[7])
    assert (result.ended, result.output_token_ids) == ("eos", (6, 7))


def test_a_chain_that_allows_nothing() -> None:
    result = simulate([("disallowed_tokens", {"token_ids": list(range(VOCAB))})], RISING)
    (step,) = result.steps
    assert (result.ended, result.output_token_ids) == ("nothing_allowed", ())
    assert (step.token_id, step.probability, step.final.allowed) == (None, 0.0, 0)
    assert step.processors[0].moved == 1.0
    assert step.processors[0].after.entropy == 0.0
    because = "all ids are denied in step 0, after disallowed_tokens"
    assert (result.ended_because, result.to_json()["ended_because"]) == (because, because)
    assert f"Ended: {because}." in result._repr_html_()
    denied = simulate([("logit_bias", {"logit_bias": {"0": 1.0}})], np.full((1, VOCAB), -np.inf, np.float32))
    assert denied.ended_because == "all ids are denied in step 0, by the model's logits"


def test_the_repr_is_short_and_has_the_end() -> None:
    chain = [("disallowed_tokens", {"token_ids": [7]}), ("logit_bias", {"logit_bias": {"0": 1.0}})]
    result = simulate(chain, np.repeat(RISING, 3, axis=0), [1])
    assert repr(result) == (
        "<Simulation of [disallowed_tokens, logit_bias]: 1 prompt ids, 3 steps, 3 output ids; ended='length': "
        "all steps are done>"
    )
    assert "Ended:" not in result._repr_html_()
    nothing = simulate([], RISING, eos_token_ids=[7])
    assert repr(nothing).endswith("ended='eos': id 7 ends the sequence>")


def test_a_failure_that_is_skipped() -> None:
    chain = [("logit_bias", {"logit_bias": {"0": 1.0}}), (Fails, {})]
    first, second = simulate(chain, np.repeat(RISING, 2, axis=0), on_error="skip", keep_logits=True).steps
    assert first.error == ""
    assert first.token_id == 6
    assert "after one id" in second.error
    assert second.final_logits is not None
    assert second.final_logits.tolist() == RISING[0].tolist()
    assert not second.processors[1].called
    assert not second.processors[1].changed


def test_skipped_argmax_invariant_processors_are_not_called() -> None:
    """A server calls no processor that cannot change the best id if all requests are greedy."""

    class MinP:
        def __init__(self, vllm_config: Any, device: Any, is_pin_memory: Any) -> None: ...

        def is_argmax_invariant(self) -> bool:
            return True

        def update_state(self, batch_update: Any) -> None: ...

        def apply(self, logits: torch.Tensor) -> torch.Tensor:
            return logits - 1

    (greedy,) = simulate([(MinP, {})], RISING, sampling_params={"temperature": 0.0}).steps[0].processors
    (sampled,) = simulate([(MinP, {})], RISING).steps[0].processors
    assert (greedy.called, sampled.called) == (False, True)


def test_sampling_depends_on_the_seed() -> None:
    model = ToyModel(VOCAB)
    first, again, other = (
        simulate([], model, [1], 20, temperature=1.5, seed=seed).output_token_ids for seed in (0, 0, 1)
    )
    assert first == again
    assert first != other
    assert (
        simulate([], model, [1], 20, temperature=1e-9).output_token_ids == simulate([], model, [1], 20).output_token_ids
    )


@pytest.mark.slow
def test_sampling_follows_the_probabilities() -> None:
    logits = np.log(np.array([[0.1, 0.2, 0.7]], np.float32))
    ids = simulate([], np.repeat(logits, 2000, axis=0), temperature=1.0).output_token_ids
    assert np.bincount(ids, minlength=3) / 2000 == pytest.approx(np.array([0.1, 0.2, 0.7]), abs=0.05)


def test_json() -> None:
    chain = [("logit_bias", {"logit_bias": {"2": 1.5}}), ("disallowed_tokens", {"token_ids": [7, 6, 5]}), (Doubles, {})]
    result = simulate(chain, np.repeat(RISING, 2, axis=0), [1])
    data = json.loads(json.dumps(result.to_json(max_ids=2), allow_nan=False))
    assert data["output_token_ids"] == list(result.output_token_ids)
    assert data["chain"][0] == {"processor": "logit_bias", "params": {"logit_bias": {"2": 1.5}}}
    denies = data["steps"][0]["processors"][1]
    assert denies["denied"] == [5, 6]
    assert denies["counts"] == {"denied": 3, "restored": 0, "biased": 0}
    assert denies["edits"] == [{"kind": "DENY", "ids": [7, 6], "values": None, "count": 3}]
    assert result.to_json(max_ids=None)["steps"][0]["processors"][1]["denied"] == [5, 6, 7]


def test_a_function_as_model() -> None:
    seen: list[list[int]] = []

    def model(token_ids: Any) -> list[float]:
        seen.append(list(token_ids))
        return [float(token_id == len(token_ids)) for token_id in range(VOCAB)]

    assert simulate([], model, [0, 0], 3).output_token_ids == (2, 3, 4)
    assert seen == [[0, 0], [0, 0, 2], [0, 0, 2, 3]]


@pytest.mark.slow  # the import of transformers
def test_a_transformers_model() -> None:
    """With its cache, the model gives what it gives for the whole history."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2
    )
    model = LlamaForCausalLM(config).eval()
    result = simulate([("no_repeat_ngram", {"ngram_size": 1})], model, [1, 2], 5, keep_logits=True)
    assert len({1, 2, *result.output_token_ids}) == 7
    history = [1, 2, *result.output_token_ids]
    for step in result.steps:
        with torch.no_grad():
            expected = model(torch.tensor([history[: 2 + step.index]])).logits[0, -1]
        assert step.raw_logits == pytest.approx(expected.numpy(), abs=1e-5)


def with_attribute(instance: Any) -> Any:
    instance.token_id = 3
    return instance


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (([], ToyModel(), [1]), InvalidArgument, "steps is None"),
        (([], RISING, [], 2), InvalidArgument, "2 steps, but logits of 1"),
        (([], RISING[0]), InvalidArgument, r"shape \[8\]"),
        (([], "model"), InvalidArgument, "or a model"),
        (([], lambda ids: [[1.0]], [], 1), InvalidArgument, r"shape \[1, 1\]"),
        (([], lambda ids: [0.0] * (2 + len(ids)), [], 2), InvalidArgument, "3 logits, and 2 before"),
        (([("disallowed_tokens", {})], RISING), InvalidArgument, "token_ids is missing"),
        (([(3, {})], RISING), PayloadError, "int"),
        (([(with_attribute(Forces()), {})], RISING), PayloadError, "attributes"),  # as by a server
        (([Forces], RISING), InvalidArgument, "pairs"),
    ],
)
def test_arguments_that_cannot_be_used(arguments: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        simulate(*arguments)


def test_a_class_runs_as_it_is() -> None:
    """It is not pickled: it may use what cannot be, and change what belongs to the test."""
    seen = []

    class Notes(EditProcessor):
        def edit(self, request: Any, edits: Any) -> None:
            seen.append(request)

    simulate([(Notes, {})], RISING)
    assert len(seen) == 1


def test_the_toy_model_is_the_same_everywhere() -> None:
    logits = ToyModel(5, seed=1)([3, 1, 4])
    assert logits.dtype == np.float32
    assert logits.tolist() == pytest.approx(EXPECTED, abs=1e-6)
    assert ToyModel(5, seed=1)([1, 4]).tolist() == logits.tolist()
    assert ToyModel(5, seed=2)([1, 4]).tolist() != logits.tolist()
    assert not math.isnan(ToyModel(200_000)([]).sum())
    with pytest.raises(InvalidArgument, match="vocab_size is 0"):
        ToyModel(0)


EXPECTED = [10.9839, 8.2392, -1.1334, -2.3919, 2.6868]


def test_processors_have_the_given_tokenizer(tmp_path: Path) -> None:
    class ForcesText(EditProcessor):
        def edit(self, request: Any, edits: Any) -> None:
            edits.force(request.tokenizer.encode("{")[0])

    library = write_trained(tmp_path)
    for tokenizer_id in ("", "org/model"):
        result = simulate([(ForcesText, {})], ToyModel(313), [5], 3, tokenizer=tmp_path, tokenizer_id=tokenizer_id)
        assert library.decode(list(result.output_token_ids)) == "{{{"
    with pytest.raises(InvalidArgument, match=r"no tokenizer is named .none is configured"):
        simulate([(ForcesText, {})], ToyModel(313), [5], 3)
    with pytest.raises(InvalidArgument, match="options has a tokenizer, too"):
        simulate([], ToyModel(313), [5], 3, tokenizer=tmp_path, options={"tokenizer": ["a=/b"]})


@pytest.mark.parametrize("returned", [[1, 2], "yield"], ids=["value", "generator"])
def test_what_edit_returns_is_refused(returned: Any) -> None:
    class Returns(EditProcessor):
        def edit(self, request: Any, edits: Any) -> Any:
            return (one for one in ()) if returned == "yield" else returned

    kind = "generator" if returned == "yield" else "list"
    message = rf"Returns: edit returned {kind}: call methods of `edits`, such as edits\.deny\(ids\), and return nothing"
    with pytest.raises(InvalidArgument, match=message):
        simulate([(Returns, {})], ToyModel(), steps=1)
    params = [{"__req__": SimpleNamespace(origin_input_ids=[1], output_ids=[])}]
    with pytest.raises(InvalidArgument, match="edit returned"):
        Returns()(torch.zeros(1, 8), params)


@pytest.mark.skipif(find_spec("vllm") is not None, reason="vLLM is installed")
def test_an_engine_that_is_missing_here() -> None:
    def imports(output_ids: Any, logits: Any) -> Any:
        import vllm.v1  # noqa: F401

    with pytest.raises(ProcessorFailed, match="No module named 'vllm'"):
        simulate([(imports, {})], ToyModel(), steps=1)


class CountsRows(CustomLogitProcessor):
    def __call__(self, logits: Any, custom_param_list: Any = None) -> Any:
        logits[:, 0] = len(custom_param_list)
        return logits


class HalvesNothing(CustomLogitProcessor):
    def __call__(self, logits: Any, custom_param_list: Any = None) -> Any:
        for row in logits:
            row = row / 2  # noqa: PLW2901
        return logits


@pytest.mark.parametrize("on_error", ["abort", "isolate"])
def test_code_for_several_rows_gets_two(on_error: Any) -> None:
    (step,) = simulate([(CountsRows, {})], np.zeros((1, 4)), on_error=on_error, keep_logits=True).steps
    assert step.processors[0].bias.tolist() == [2.0]


def test_a_line_without_an_effect_is_named() -> None:
    with pytest.warns(ProcessorWarning, match=r"test_simulate.py:\d+: `row = row / 2"):
        simulate([(HalvesNothing, {})], ToyModel(), steps=1)
