"""Processors of other contracts become programs, which compute the same."""

from __future__ import annotations

import copy
from functools import partial

import pytest
import torch
from transformers.generation import logits_process as hf

from logitport import Bool, Float, History, Int, NotCapturable
from logitport.dialects import InDialect
from logitport_programs.capturing import capture
from logitport_programs.lifting import lift
from logitport_programs.request_tokens import RequestTokens
from logitport_programs.runtime.program_runner import Runner
from logitport_programs.verifier import verify
from tests.programs import samplers
from tests.programs.lifting import gallery

VOCAB = 4700
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
TOLERANCES = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 1e-2}
IDS = [[1, 2, 3], [4], [9, 9, 2, 8, 7, 3]]


def logits_of(dtype: torch.dtype) -> torch.Tensor:
    logits = torch.randn(3, VOCAB, generator=torch.Generator().manual_seed(5)) * 3
    logits[1, 100:] = -float("inf")
    return logits.to(dtype)


def run(program, logits, params) -> torch.Tensor:
    result = logits.clone()
    histories = [RequestTokens(History(ids)) for ids in IDS]
    assert not Runner().apply(verify(program), result, range(3), params, histories)
    return result


@pytest.mark.parametrize(
    ("processor", "declared", "params"),
    [
        (
            gallery.Temperature,
            {"temperature": Float()},
            [{"temperature": 0.5}, {"temperature": 2}, {"temperature": 1e-3}],
        ),
        (gallery.MinP, {"min_p": Float(default=0.1)}, [{"min_p": 0.01}, {}, {"min_p": 1}]),
        (gallery.TopK, {"k": Int(default=50)}, [{"k": 1}, {}, {"k": 10_000}]),
        (
            gallery.InOtherForms,
            {
                "a": Float(default=1.0),
                "b": Float(default=2.0),
                "shift": Float(),
                "scale": Float(),
                "on": Bool(default=True),
            },
            [
                {"scale": 0.5, "shift": 1},
                {"scale": 2, "shift": 0, "on": False},
                {"scale": 1, "shift": 0, "a": 3.0, "b": 0.5},
            ],
        ),
        (gallery.Weighted, {}, [{}] * 3),
        (gallery.WithoutGradients, {"scale": Float()}, [{"scale": 0.5}, {"scale": 2.0}, {"scale": 0.25}]),
        (gallery.Weighted([0, 4]), {}, [{}] * 3),
    ],
)
def test_classes_for_sglang(processor, declared, params) -> None:
    program = lift(processor)
    assert {one.name: one for one in program.parameters} == {
        name: one.parameter(name) for name, one in declared.items()
    }
    instance = processor() if isinstance(processor, type) else processor
    for dtype in DTYPES:
        expected = instance(logits_of(dtype), [dict(one) for one in params]).to(dtype)
        torch.testing.assert_close(run(program, logits_of(dtype), params), expected, rtol=TOLERANCES[dtype], atol=1e-6)


OF_TRANSFORMERS = {
    "temperature": hf.TemperatureLogitsWarper(0.7),
    "top k": hf.TopKLogitsWarper(40),
    "top p": hf.TopPLogitsWarper(0.8),
    "top h": hf.TopHLogitsWarper(0.4),
    "min p": hf.MinPLogitsWarper(0.1),
    "typical": hf.TypicalLogitsWarper(0.8),
    "epsilon": hf.EpsilonLogitsWarper(3e-4),
    "eta": hf.EtaLogitsWarper(3e-4),
    "repetition": hf.RepetitionPenaltyLogitsProcessor(1.3),
    "suppress": hf.SuppressTokensLogitsProcessor([1, 5, 4000]),
    "suppress at begin": hf.SuppressTokensAtBeginLogitsProcessor([3, 4], 3),
    "min length": hf.MinLengthLogitsProcessor(6, [2, 3]),
    "min new tokens": hf.MinNewTokensLengthLogitsProcessor(3, 2, 2),
    "forced bos": hf.ForcedBOSTokenLogitsProcessor(4),
    "forced eos": hf.ForcedEOSTokenLogitsProcessor(7, [2]),
    "normalization": hf.LogitNormalization(),
    "inf and nan": hf.InfNanRemoveLogitsProcessor(),
    "bark": hf.BarkEosPrioritizerLogitsProcessor(2, 0.3),
    "list": hf.LogitsProcessorList([hf.TemperatureLogitsWarper(0.7), hf.TopKLogitsWarper(5)]),
}


@pytest.mark.parametrize("name", OF_TRANSFORMERS)
def test_instances_of_transformers(name: str) -> None:
    processor = OF_TRANSFORMERS[name]
    program = lift(processor)
    assert not program.parameters
    for dtype in DTYPES:
        rows = zip(IDS, logits_of(dtype), strict=True)
        expected = torch.cat([processor(torch.tensor([ids]), row[None].float()) for ids, row in rows]).to(dtype)
        found = run(program, logits_of(dtype), [])
        close = torch.isclose(found, expected, rtol=TOLERANCES[dtype], atol=1e-6)
        assert int((~close).sum()) <= 4  # next to a threshold


@pytest.mark.parametrize("function", [gallery.centered, gallery.with_prompt])
def test_functions_of_one_row(function) -> None:
    program = lift(function)
    ids = [[]] * (function is gallery.with_prompt)
    for dtype in DTYPES:
        expected = torch.stack([function(*ids, [1], row.float()) for row in logits_of(dtype)]).to(dtype)
        found = run(program, logits_of(dtype), [])
        torch.testing.assert_close(found, expected, rtol=TOLERANCES[dtype], atol=1e-6)


@pytest.mark.parametrize("processor", [gallery.DynamoTemperature, gallery.DynamoTemperature(2.0), gallery.DynamoForce])
def test_processors_for_dynamo(processor) -> None:
    program = lift(processor)
    instance = processor() if isinstance(processor, type) else processor
    for dtype in DTYPES:
        expected = logits_of(dtype)
        for row in expected:
            instance([1, 2], row)
        torch.testing.assert_close(run(program, logits_of(dtype), []), expected, rtol=TOLERANCES[dtype], atol=1e-6)


def test_a_tensor_processor_is_captured() -> None:
    assert lift(samplers.MinP) == lift(InDialect(samplers.MinP, "sglang")) == capture(samplers.MinP)
    instance = samplers.MinP()
    instance.window = 3
    with pytest.raises(NotCapturable, match="an instance of a TensorProcessor with attributes: pass its class"):
        lift(instance)


def test_the_processor_itself_stays_as_it_is() -> None:
    processor = gallery.Weighted()
    before = copy.deepcopy(vars(processor))
    lift(processor)
    assert str(vars(processor)) == str(before)
    for changes in (gallery.Caches, gallery.Counts):
        with pytest.raises(NotCapturable):
            lift(changes)
    assert gallery.Caches.cache == {}
    assert gallery.Counts.calls == 0


@pytest.mark.parametrize(
    ("processor", "text"),
    [
        (gallery.LoopOverRowsWithoutParameters, "fixes the number of rows"),
        (gallery.Counts, "self.calls changes in a call; a program has no state"),
        (gallery.DynamoSequence, "self.place changes in a call"),
        (gallery.Caches, "Caches.cache changes in a call"),
        (gallery.TestsTypesExactly, "the program differs from the class (torch.float32"),
        (gallery.CatchesAMissingKey, "runs without the parameter 'scale', and the program would not"),
        (gallery.SkipsEmpty, "the program differs from the class (torch.float32"),
        (gallery.MixesRows, "a program never mixes"),
        (gallery.IsRandom, "rand_like is random"),
        (partial(hf.TemperatureLogitsWarper, temperature=0.5), ""),
    ],
)
def test_refusals_after_the_capture(processor, text: str) -> None:
    if not text:
        lift(processor)
        return
    with pytest.raises(NotCapturable) as error:
        lift(processor)
    assert error.value.message.startswith(f"{gallery.__file__}:")
    assert text in error.value.message
