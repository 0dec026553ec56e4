"""Processors become programs, or are refused with the author's line."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from logitport import Bool, Float, Int, NotCapturable, TensorProcessor
from logitport_programs.capturing import capture
from logitport_programs.program import Parameter, Program
from logitport_programs.types import Element
from logitport_programs.verifier import verify
from tests.programs import not_capturable, samplers

if TYPE_CHECKING:
    from collections.abc import Sequence

pytestmark = pytest.mark.slow

INF = float("inf")


def listed(program: Program) -> list[str]:
    """Each value on a line, with its type."""
    types = verify(program).types
    return [
        f"{place} {value.operator}({', '.join(map(str, value.inputs))}): {described}"
        for place, (value, described) in enumerate(zip(program.values, types, strict=True))
    ]


def captured(process, *, window: int = 0, **params) -> Program:
    members = {"process": process, "params": params, "window": window, "__module__": process.__module__}
    return capture(type("Author", (TensorProcessor,), members))


def test_min_p() -> None:
    program = capture(samplers.MinP)
    assert listed(program) == [
        "0 logits(): logits[rows, vocab]",
        "1 softmax(0): logits[rows, vocab]",
        "2 cast(1): float32[rows, vocab]",
        "3 parameter(): float32[rows]",
        "4 unsqueeze(3): float32[rows, 1]",
        "5 amax(1): logits[rows, 1]",
        "6 cast(5): float32[rows, 1]",
        "7 multiply(4, 6): float32[rows, 1]",
        "8 less(2, 7): bool[rows, vocab]",
        "9 full(): logits[]",
        "10 where(8, 9, 0): logits[rows, vocab]",
    ]
    assert program.name == "MinP"
    assert program.parameters == (Parameter("min_p", Element.FLOAT32, 0.05, 0.0, 1.0),)
    assert program.window == 0
    assert program.values[9].number == -INF


def test_a_number_that_the_logits_type_lacks_is_used_in_float32() -> None:
    """Torch computes with it in float32, too, whatever the dtype of the logits."""
    program = captured(lambda self, logits, params, history: logits * 0.7 + 0.5)
    assert listed(program) == [
        "0 logits(): logits[rows, vocab]",
        "1 cast(0): float32[rows, vocab]",
        "2 full(): float32[]",
        "3 multiply(1, 2): float32[rows, vocab]",
        "4 cast(3): logits[rows, vocab]",
        "5 full(): logits[]",
        "6 add(4, 5): logits[rows, vocab]",
    ]


def test_top_k_has_a_constant() -> None:
    (value,) = [value for value in capture(samplers.TopKConstant).values if value.operator == "top_k"]
    assert value.integer == 50


def test_the_window_and_the_masks() -> None:
    def process(self, logits, params, history):
        last = history.ids[:, -1:] == torch.arange(logits.shape[-1])
        return logits - (history.token_counts(generated_only=True) * last)

    program = captured(process, window=5)
    assert program.window == 5
    (history,) = [place for place, value in enumerate(program.values) if value.operator == "history"]
    assert listed(program)[history] == f"{history} history(): int64[rows, window]"
    (counts,) = [value for value in program.values if value.operator == "token_counts"]
    assert counts.flag is True


def test_an_unused_window_is_left_out() -> None:
    assert captured(lambda self, logits, params, history: logits + 1, window=5).window == 0


def test_parameters_of_all_kinds() -> None:
    def process(self, logits, params, history):
        return torch.where(params.on[:, None], logits * params.x[:, None], logits + params.n[:, None])

    program = captured(process, n=Int(default=3, ge=0, lt=9), on=Bool(), x=Float(gt=0))
    assert program.parameters == (
        Parameter("n", Element.INT64, 3, 0, 8),
        Parameter("on", Element.BOOL, None, 0, 1),
        Parameter("x", Element.FLOAT32, None, 1.401298464324817e-45, INF),
    )


def test_a_constant_has_no_rows() -> None:
    described = listed(capture(samplers.Held))
    assert any("constant(): float32[3]" in line for line in described)


def test_a_result_that_is_equal_for_all_rows_has_rows() -> None:
    assert listed(captured(lambda self, logits, params, history: torch.zeros_like(logits))) == [
        "0 full(): bool[]",
        "1 full(): logits[vocab]",
        "2 logits(): logits[rows, vocab]",
        "3 where(0, 1, 2): logits[rows, vocab]",
    ]


def test_a_tensor_of_the_vocabulary_is_broadcast_to_the_rows() -> None:
    described = listed(captured(lambda self, logits, params, history: logits + torch.arange(logits.shape[1])[None]))
    assert described[-1].endswith("add(0, 4): logits[rows, vocab]")
    assert "1 arange(): int64[vocab]" in described


def test_zeros_of_both_signs_differ() -> None:
    program = captured(lambda self, logits, params, history: torch.where(logits.isnan(), 0.0, -0.0))
    assert [str(value.number) for value in program.values if value.operator == "full"] == ["0.0", "-0.0"]


def test_what_the_result_does_not_need_is_left_out() -> None:
    def process(self, logits, params, history):
        logits.sort(-1)
        history.token_mask()
        return logits * 2

    assert [value.operator for value in captured(process).values] == ["logits", "full", "multiply"]


def test_two_captures_are_equal() -> None:
    assert capture(samplers.Penalties).digest == capture(samplers.Penalties).digest


def refusal(process, texts: Sequence[str]) -> str:
    declares = "x" in process.__code__.co_names or "parameter 'x' of program" in texts
    with pytest.raises(NotCapturable) as error:
        captured(process, **({"x": Float(default=1)} if declares else {}))
    return str(error.value)


@pytest.mark.parametrize(("process", "texts"), [(process, texts) for process, *texts in not_capturable.EXPRESSIONS])
def test_refusals_name_the_line_and_give_advice(process, texts: list[str], capfd) -> None:
    message = refusal(process, texts)
    assert message.startswith(f"{not_capturable.__file__}:{process.__code__.co_firstlineno}:")
    assert all(text in message for text in texts), message
    assert not capfd.readouterr().err


@pytest.mark.parametrize(
    ("process", "line", "texts"), not_capturable.FUNCTIONS, ids=[case[0].__name__ for case in not_capturable.FUNCTIONS]
)
def test_refusals_name_the_line_of_several(process, line: str, texts: tuple[str, ...]) -> None:
    message = refusal(process, texts)
    assert message.startswith(f"{not_capturable.__file__}:")
    assert all(text in message for text in (line, *texts)), message


def test_the_random_generators_go_on() -> None:
    torch.manual_seed(5)
    expected = torch.rand(2)
    torch.manual_seed(5)
    capture(samplers.ConstantScale)
    assert torch.equal(torch.rand(2), expected)
