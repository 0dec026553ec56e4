"""The built-ins that read logits: the class in torch, and its program in both interpreters."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

import logitport_builtins
from logitport.core.history import History
from logitport.errors import InvalidArgument
from logitport_builtins import BUILTIN_PROGRAMS
from logitport_programs import reference
from logitport_programs.parameters import check_params
from logitport_programs.request_tokens import RequestTokens
from logitport_programs.runtime.program_runner import Runner
from logitport_programs.verifier import verify

CLASSES = {
    cls.builtin_name: cls
    for cls in map(logitport_builtins.__dict__.get, logitport_builtins.__all__)
    if getattr(cls, "builtin_name", None) in BUILTIN_PROGRAMS
}
PARAMS = {
    "epsilon": ("epsilon_cutoff", [1e-4, 1e-3, 0.2]),
    "eta": ("eta_cutoff", [1e-4, 1e-3, 0.2]),
    "min_p": ("min_p", [0.0, 0.1, 1.0]),
    "repetition_penalty": ("repetition_penalty", [0.5, 1.0, 2.0]),
    "temperature": ("temperature", [0.0, 0.7, 2.0]),
    "top_k": ("top_k", [1, 5, -1]),
    "top_p": ("top_p", [0.1, 0.9, 1.0]),
    "typical_p": ("typical_p", [0.1, 0.5, 0.9]),
}
HISTORIES = [([1, 2], [3]), ([], []), ([5, 5], [6])]
NAMES = pytest.mark.parametrize("name", BUILTIN_PROGRAMS)
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])


def rows_of(name):
    key, numbers = PARAMS[name]
    return [{key: number} for number in numbers]


def run(name, logits, rows=None):
    program = verify(BUILTIN_PROGRAMS[name])
    result = logits.clone()
    tokens = [RequestTokens(History(*ids)) for ids in HISTORIES] if name == "repetition_penalty" else []
    assert Runner().apply(program, result, range(len(logits)), rows or rows_of(name), tokens) == {}
    return result


def random_logits(dtype=torch.float32, vocab_size=300):
    return (torch.randn(3, vocab_size, generator=torch.Generator().manual_seed(0)) * 4).to(dtype)


@NAMES
@DTYPES
@pytest.mark.parametrize("vocab_size", [300, 5000])
def test_the_program_computes_what_the_class_computes(name, dtype, vocab_size):
    logits = random_logits(dtype, vocab_size)
    rows = [
        {**params, "__req__": SimpleNamespace(origin_input_ids=prompt, output_ids=output)}
        for params, (prompt, output) in zip(rows_of(name), HISTORIES, strict=True)
    ]
    expected = CLASSES[name]()(logits.clone(), rows).to(dtype)
    assert torch.equal(run(name, logits), expected)


@NAMES
def test_the_program_in_the_reference_interpreter(name):
    logits = random_logits()
    key, numbers = PARAMS[name]
    histories = [History(*ids) for ids in HISTORIES]
    found = reference.run(verify(BUILTIN_PROGRAMS[name]), logits.numpy(), {key: numbers}, histories)
    np.testing.assert_allclose(found, run(name, logits).numpy(), rtol=3e-7)


@NAMES
@DTYPES
def test_rows_with_one_allowed_id_or_none(name, dtype):
    logits = torch.full((3, 300), -torch.inf, dtype=dtype)
    logits[1, 7] = 2.0
    result = run(name, logits)
    assert torch.equal(result.isfinite(), logits.isfinite())
    assert not result.isnan().any()


@NAMES
def test_padding_stays_denied(name):
    logits = random_logits()
    logits[:, 250:] = -torch.inf
    result = run(name, logits)
    assert result[:, 250:].isneginf().all()
    assert result[:, :250].isfinite().any(-1).all()
    if name != "top_p":  # the sum of the probabilities is rounded in another order
        assert torch.equal(result[:, :250], run(name, logits[:, :250].contiguous()))


@NAMES
def test_at_least_the_best_id_remains(name):
    for logits in (random_logits(), random_logits().round(), torch.zeros(3, 300)):
        assert run(name, logits).isfinite().any(-1).all()


def test_temperature_0_leaves_the_first_of_the_best_ids():
    logits = torch.tensor([[1.0, 5.0, 5.0, -1.0]] * 3)
    result = run("temperature", logits, [{"temperature": 0}, {"temperature": 0.9e-5}, {"temperature": 1.1e-5}])
    assert result[0].tolist() == result[1].tolist() == [-torch.inf, 5.0, -torch.inf, -torch.inf]
    assert result[2].isfinite().all()


def test_top_k_keeps_all_ids_with_the_last_logit():
    logits = torch.tensor([[3.0, 2.0, 2.0, 1.0]] * 3)
    result = run("top_k", logits, [{"top_k": 1}, {"top_k": 2}, {"top_k": 4}])
    assert result.isfinite().tolist() == [[True, False, False, False], [True, True, True, False], [True] * 4]
    assert run("top_k", logits, [{"top_k": 0}, {"top_k": -1}, {"top_k": 1024}]).equal(logits)


def test_top_p_keeps_the_higher_ones_of_equal_logits():
    result = run("top_p", torch.zeros(3, 4), [{"top_p": 0.2}, {"top_p": 0.5}, {"top_p": 1.0}])
    assert result.isfinite().tolist() == [[False, False, False, True], [False, False, True, True], [True] * 4]


def test_the_repetition_penalty_lowers_ids_of_prompt_and_output():
    logits = torch.tensor([[0.0, 1.0, -1.0, 4.0, 2.0, 1.0, 1.0]] * 3)
    result = run("repetition_penalty", logits, [{"repetition_penalty": 2.0}] * 3)
    assert result[0].tolist() == [0.0, 0.5, -2.0, 2.0, 2.0, 1.0, 1.0]
    assert result[1].equal(logits[1])


REFUSED = [
    ("temperature", -0.1),
    ("temperature", "1"),
    ("top_k", -2),
    ("top_k", 1025),
    ("top_k", 1.0),
    ("top_p", 0),
    ("top_p", 1.01),
    ("min_p", -0.01),
    ("min_p", 1.01),
    ("typical_p", 0),
    ("typical_p", 1),
    ("epsilon", 0),
    ("eta", 1),
    ("repetition_penalty", 0),
]


@pytest.mark.parametrize(("name", "number"), REFUSED)
def test_numbers_outside_the_limits_are_refused(name, number):
    key = PARAMS[name][0]
    for check in (CLASSES[name].validate_params, lambda given: check_params(BUILTIN_PROGRAMS[name].parameters, given)):
        with pytest.raises(InvalidArgument, match=f"'{key}' is {number!r}; it must be"):
            check({key: number})
        with pytest.raises(InvalidArgument, match=f"'{key}' is missing"):
            check({})
