"""The gallery in examples/programs: each class computes the same in torch, as a program, and in a session."""

from __future__ import annotations

import importlib
import inspect
import math
from functools import cache
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from logitport import Client, History, Request, TensorProcessor
from logitport_builtins import Dry
from logitport_programs.capturing import capture
from logitport_programs.request_tokens import RequestTokens
from logitport_programs.runtime.program_runner import Runner
from logitport_programs.verifier import Verified, verify

if TYPE_CHECKING:
    from tests.conftest import RunningServer

ROOT = Path(__file__).parents[2]
NAMES = sorted(path.stem for path in (ROOT / "examples" / "programs").glob("*.py"))
VOCAB, INF = 5000, math.inf
HISTORIES: list[tuple[list[int], list[int]]] = [([1, 2, 3], [7, 7]), ([5], []), ([9, 9, 4500], [4999])]
# Of each class, the parameters of three requests.
PARAMS: dict[str, list[dict[str, Any]]] = {
    "allow_ids": [{"ids": [3, 7, VOCAB]}, {"ids": list(range(0, 512, 2))}, {}],
    "dry_window": [{"allowed_length": 1}, {}, {"allowed_length": 1, "base": 3.0, "breakers": [9]}],
    "dynamic_temperature": [{}, {"low": 0.1, "high": 3.0}, {"exponent": 2.0}],
    "exclude_top_choices": [{"threshold": 0.01}, {"threshold": 0.002, "keep": [0, 9]}, {"threshold": 0.5}],
    "repetition_decay": [{}, {"penalty": 2.0, "decay": 0.5}, {"decay": 1.0}],
    "smoothing": [{}, {"factor": 0.1, "curve": 2.0}, {"curve": 3.0}],
    "target_entropy": [{}, {"bits": 1.0}, {"bits": 9.0}],
    "think_answer_limits": [
        {"think_end": 7, "end": 3, "max_answer": 1},
        {"think_end": 7, "end": 3, "max_think": 0},
        {"think_end": 7, "end": 3},
    ],
    "top_a": [{}, {"a": 1.0}, {"a": 0.0}],
    "top_n_sigma": [{}, {"n": 2.0}, {"n": 0.5}],
    "unigram_contrast": [{}, {"weight": 1.0, "plausible": 0.001}, {"weight": 0.0}],
    "watermark": [{"key": 15485863}, {"key": -7, "ratio": 0.5}, {"key": 2**40, "bias": 0.5}],
}


@cache
def class_of(name: str) -> type[TensorProcessor]:
    module = importlib.import_module(f"examples.programs.{name}")
    (found,) = [one for one in vars(module).values() if inspect.isclass(one) and one.__module__ == module.__name__]
    assert issubclass(found, TensorProcessor)
    return found


@cache
def program_of(name: str) -> Verified:
    return verify(capture(class_of(name)))


def random_logits() -> torch.Tensor:
    logits = torch.randn(3, VOCAB, generator=torch.Generator().manual_seed(5)) * 3
    logits[:, 11] = -INF  # denied by an earlier processor
    return logits


def expected(name: str) -> torch.Tensor:
    """The results of the class itself, in torch."""
    rows = [
        {**params, "__req__": SimpleNamespace(origin_input_ids=prompt, output_ids=output)}
        for params, (prompt, output) in zip(PARAMS[name], HISTORIES, strict=True)
    ]
    return class_of(name)()(random_logits(), rows)


every_example = pytest.mark.parametrize("name", NAMES)


def test_each_example_is_tested() -> None:
    assert sorted(PARAMS) == NAMES


@every_example
def test_the_docstring_names_the_source_and_the_parameters(name: str) -> None:
    text = inspect.getdoc(class_of(name)) or ""
    assert "Source" in text
    for parameter in class_of(name).params:
        assert f"    {parameter}: " in text


@every_example
def test_programs_compute_what_the_classes_compute(name: str) -> None:
    verified, logits = program_of(name), random_logits()
    histories = [RequestTokens(History(*ids)) for ids in HISTORIES]
    failed = Runner().apply(verified, logits, range(3), PARAMS[name], histories if verified.reads_history else ())
    assert not failed
    torch.testing.assert_close(logits, expected(name), rtol=1e-6, atol=1e-6)
    assert not torch.equal(logits, random_logits())


@every_example
@pytest.mark.parametrize("programs", ["all", "off"])
def test_a_session_with_a_server_that_runs_no_code(
    name: str, programs: Any, server_without_flag: RunningServer
) -> None:
    with (
        Client(server_without_flag.target) as client,
        client.session(vocab_size=VOCAB, dtype=torch.float32, programs=programs) as session,
    ):
        client.register(program_of(name).program, name=f"examples/{name}", replace=True)
        new_ids, handles = {}, []
        for params, (prompt, output) in zip(PARAMS[name], HISTORIES, strict=True):
            handle = session.add(Request(prompt, processors=[(f"examples/{name}", params)]))
            assert handle.sends_logits == (programs == "off")
            handles.append(handle)
            new_ids[handle] = output
        logits = random_logits()
        result = session.step(new_ids).apply(logits)
        assert list(result.rows_applied.values()) == [3]
        assert bool(session.logits_memory) == (programs == "off")
        torch.testing.assert_close(logits, expected(name), rtol=1e-6, atol=1e-6)


def process(name: str, logits: list[float], history: list[int] | None = None, **params: Any) -> list[float]:
    """One row in torch."""
    request = SimpleNamespace(origin_input_ids=history or [], output_ids=[])
    row = class_of(name)()(torch.tensor([logits], dtype=torch.float32), [{**params, "__req__": request}])
    return [round(value, 4) for value in row[0].tolist()]


LOGITS = [math.log(0.5), math.log(0.3), math.log(0.15), math.log(0.05)]


def test_allow_ids() -> None:
    assert process("allow_ids", [1, 2, 3]) == [1, 2, 3]
    assert process("allow_ids", [1, 2, 3], ids=[2, 99]) == [-INF, -INF, 3]


@pytest.mark.parametrize("breakers", [[], [2]])
@pytest.mark.parametrize("allowed_length", [1, 3])
def test_dry_window_is_the_built_in_dry_of_the_last_ids(allowed_length: int, breakers: list[int]) -> None:
    """Repetitions have at most 24 ids, the longest that the program counts."""
    generator = np.random.default_rng(allowed_length)
    rule = {"dry_multiplier": 0.5, "dry_allowed_length": allowed_length, "dry_sequence_breaker_ids": breakers}
    for length in (0, 1, 5, 60, 128, 300):
        history = [*generator.integers(4, size=length).tolist(), 0, 1, 3, 0, 1, 3, 0]
        logits = np.zeros((1, 4), np.float32)
        request = SimpleNamespace(origin_input_ids=history, output_ids=[])
        Dry()(logits, [{**rule, "dry_penalty_last_n": 128, "__req__": request}])
        found = process(
            "dry_window", [0.0] * 4, history, multiplier=0.5, allowed_length=allowed_length, breakers=breakers
        )
        assert found == pytest.approx(logits[0].tolist(), abs=1e-3)
        assert any(found)


def test_dynamic_temperature() -> None:
    assert process("dynamic_temperature", [2, 2], low=0.5, high=2.0) == [1, 1]  # the highest entropy
    assert process("dynamic_temperature", [200, 0], low=0.5, high=2.0) == [400, 0]  # no entropy


def test_exclude_top_choices() -> None:
    denied = [value == -INF for value in process("exclude_top_choices", LOGITS, threshold=0.1)]
    assert denied == [True, True, False, False]
    kept = process("exclude_top_choices", LOGITS, threshold=0.1, keep=[0])
    assert [value == -INF for value in kept] == [False, True, False, False]
    assert -INF not in process("exclude_top_choices", LOGITS, threshold=0.4)


def test_repetition_decay() -> None:
    found = process("repetition_decay", [4, 4, -4, 4], history=[1, 2, 1], penalty=2.0, decay=0.5)
    assert found == [4, 2, -6, 4]  # 1 occurred last, 2 one id before it


def test_smoothing() -> None:
    assert process("smoothing", [3, 1, -INF], factor=0.5, curve=1.0) == [3, 1, -INF]  # 3 - 0.5 * 2 ** 2
    assert process("smoothing", [3, 1, 2], factor=0.5, curve=3.0) == [3, -1, 2.5]  # 3 - 0.5 * 2 ** 3


def test_target_entropy() -> None:
    for bits in (0.5, 1.0, 1.8):
        row = torch.tensor(process("target_entropy", LOGITS, bits=bits)).log_softmax(-1)
        assert -(row.exp() * row).sum() / math.log(2) == pytest.approx(bits, abs=0.05)


def test_think_answer_limits() -> None:
    """Compared with a loop over the output, for all outputs of three ids, with a model that prefers id 2."""
    limits = {"think_end": 0, "end": 1, "max_think": 2, "max_answer": 1}
    ids = range(3)
    for output in [list(one) for length in range(4) for one in product(ids, repeat=length)]:
        if 0 in output:
            forced = 1 if len(output) - output.index(0) > limits["max_answer"] else None
        else:
            forced = 0 if len(output) >= limits["max_think"] else None
        expected = [1, 2, 3] if forced is None else [0 if one == forced else -INF for one in ids]
        request = SimpleNamespace(origin_input_ids=[0, 0], output_ids=output)  # the thinking of an earlier turn
        row = class_of("think_answer_limits")()(torch.tensor([[1.0, 2.0, 3.0]]), [{**limits, "__req__": request}])
        assert row[0].tolist() == expected, output


def test_think_answer_limits_of_an_answer_that_is_longer_than_the_window() -> None:
    request = SimpleNamespace(origin_input_ids=[5], output_ids=[0, *[2] * 1500])
    params = {"think_end": 0, "end": 1, "__req__": request}
    row = class_of("think_answer_limits")()(torch.tensor([[1.0, 2.0, 3.0]]), [params])
    assert row[0].tolist() == [-INF, 0, -INF]


def test_top_a() -> None:
    denied = [value == -INF for value in process("top_a", LOGITS, a=0.4)]
    assert denied == [False, False, False, True]  # 0.4 * 0.5 ** 2 is 0.1


def test_top_n_sigma() -> None:
    assert process("top_n_sigma", [4, 0, 0, 4, -INF], n=1.0) == [4, -INF, -INF, 4, -INF]
    assert process("top_n_sigma", [4, 0, 0, 4, -INF], n=2.0) == [4, 0, 0, 4, -INF]


def test_unigram_contrast() -> None:
    found = process("unigram_contrast", [0, 0, -9], weight=1.0, plausible=0.5)
    assert found[0] < found[1] < 0  # the table has the frequent ids first
    assert found[2] == -9


def test_watermark() -> None:
    flat = [0.0] * 4000
    first = process("watermark", flat, history=[1], key=1, ratio=0.25, bias=2.0)
    assert set(first) == {0, 2}
    assert 0.23 < first.count(2) / 4000 < 0.27
    for other in ({"history": [2], "key": 1}, {"history": [1], "key": 2}):
        second = process("watermark", flat, ratio=0.25, bias=2.0, **other)
        both = sum(a == b == 2 for a, b in zip(first, second, strict=True))
        assert 0.04 < both / 4000 < 0.09  # a sixteenth of the ids: the lists are independent
    assert set(process("watermark", flat, key=1)) == {0}  # no id before
