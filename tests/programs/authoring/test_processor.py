"""`TensorProcessor`, called on tensors in process."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from logitport import Bool, CustomLogitProcessor, Float, Int, InvalidArgument, TensorProcessor, TokenIds
from tests.programs.samplers import MinP

INF = float("inf")


class Records(TensorProcessor):
    params = {"number": Float(default=1), "count": Int(ge=0), "flag": Bool(default=True)}
    window = 3

    def process(self, logits, params, history):
        self.params_seen, self.history = params, history
        return logits


def req(prompt: list[int], output: list[int]) -> SimpleNamespace:
    return SimpleNamespace(origin_input_ids=prompt, output_ids=output)


def recorded(*dicts: Any, vocab_size: int = 6) -> Records:
    processor = Records()
    processor(torch.zeros(len(dicts), vocab_size), list(dicts))
    return processor


def test_it_is_an_ordinary_processor() -> None:
    assert issubclass(TensorProcessor, CustomLogitProcessor)
    logits = torch.tensor([[0.0, 1.0, 5.0], [0.0, 1.0, 5.0]])
    result = MinP()(logits.clone(), [{"min_p": 0.01}, {"min_p": 0.5}])
    assert result.tolist() == [[-INF, 1.0, 5.0], [-INF, -INF, 5.0]]
    assert torch.equal(MinP()(logits.clone()), MinP()(logits.clone(), [{"min_p": 0.05}, {}]))


def test_parameters_are_tensors_of_rows() -> None:
    seen = recorded({"number": 0.5, "count": 2**60 + 1}, {"count": 3, "flag": False}).params_seen
    assert torch.equal(seen.number, torch.tensor([0.5, 1.0]))
    assert seen.count.dtype is torch.int64
    assert seen.count.tolist() == [2**60 + 1, 3]
    assert torch.equal(seen.flag, torch.tensor([True, False]))


def test_ids_are_padded_at_the_end() -> None:
    class WithIds(Records):
        params = {"ids": TokenIds(max_ids=3)}

    processor = WithIds()
    processor(torch.zeros(3, 6), [{"ids": [4, 5]}, {"ids": []}, {"ids": [1, 1, 9]}])
    assert processor.params_seen.ids.dtype is torch.int64
    assert processor.params_seen.ids.tolist() == [[4, 5, -1], [-1, -1, -1], [1, 1, 9]]
    with pytest.raises(InvalidArgument, match="'ids' is missing; set it to a list of at most 3 token ids"):
        WithIds.validate_params({})


def test_the_window_is_aligned_at_the_end() -> None:
    rows = [([1, 2], [3, 4]), ([1], []), ([], []), ([5, 4, 3, 2], [1])]
    history = recorded(*({"count": 0, "__req__": req(*row)} for row in rows)).history
    assert history.ids.tolist() == [[2, 3, 4], [-1, -1, 1], [-1, -1, -1], [3, 2, 1]]
    assert history.ids.dtype is history.lengths.dtype is torch.int64
    assert history.lengths.tolist() == [3, 1, 0, 3]


def test_without_a_window_there_are_no_ids() -> None:
    class Shapes(TensorProcessor):
        def process(self, logits, params, history):
            assert history.ids.shape == (1, 0)
            assert history.token_mask().tolist() == [[False, True, False]]
            return logits

    Shapes()(torch.zeros(1, 3), [{"__req__": req([1], [])}])


def test_masks_and_counts_include_the_whole_history() -> None:
    given = {"count": 0, "__req__": req([0, 0, 1, 9, -1], [1, 3, 3, 3, 3])}
    history = recorded(given, {"count": 0}).history
    assert history.token_counts().tolist() == [[2, 2, 0, 4, 0, 0], [0] * 6]
    assert history.token_counts(generated_only=True).tolist() == [[0, 1, 0, 4, 0, 0], [0] * 6]
    assert history.token_counts().dtype is torch.int64
    assert history.token_mask()[0].tolist() == [True, True, False, True, False, False]
    assert history.token_mask(generated_only=True)[0].tolist() == [False, True, False, True, False, False]


def test_parameters_are_checked_at_admission_and_in_a_call() -> None:
    with pytest.raises(InvalidArgument, match="no parameter 'cuont'; set only: number, count, flag") as at_admission:
        Records.validate_params({"count": 1, "cuont": 2})
    with pytest.raises(InvalidArgument) as in_a_call:
        recorded({"count": 1, "cuont": 2})
    assert str(in_a_call.value) == str(at_admission.value)


def test_strict_limits() -> None:
    class Positive(TensorProcessor):
        params = {"x": Float(default=1, gt=0, lt=2), "n": Int(default=2, gt=1, lt=4)}

        def process(self, logits, params, history):
            return logits

    Positive.validate_params({"x": 1e-38, "n": 3})
    for bad in ({"x": 0}, {"x": 1e-60}, {"x": 2}, {"n": 1}, {"n": 4}):
        with pytest.raises(InvalidArgument):
            Positive.validate_params(bad)


@pytest.mark.parametrize(
    ("declare", "message"),
    [
        (lambda: Float(default=2, le=1), "the default 2.0 lies outside"),
        (lambda: Float(ge=2, le=1), "exclude all values"),
        (lambda: Float(ge=float("nan")), "exclude all values"),
        (lambda: Int(default=1 << 60), "it must be an integer in"),
        (lambda: Int(ge=0.5), "it must be an integer in"),  # type: ignore[arg-type]
        (lambda: TokenIds(max_ids=0), "max_ids=0; it must be in [1, 4096]"),
        (lambda: TokenIds(max_ids=4097), "max_ids=4097"),
        (lambda: TokenIds(default=(1,)), "it must be () or None"),  # type: ignore[arg-type]
        (lambda: type("Bad", (TensorProcessor,), {"window": -1}), "Bad.window is -1"),
        (lambda: type("Bad", (TensorProcessor,), {"params": {"x": 1.0}}), "declare Float, Int, Bool or TokenIds"),
        (lambda: type("Bad", (TensorProcessor,), {"params": {"a b": Float()}}), "must be an identifier"),
    ],
)
def test_declarations_are_checked(declare: Any, message: str) -> None:
    with pytest.raises(InvalidArgument) as error:
        declare()
    assert message in str(error.value)


def test_each_row_needs_a_dict() -> None:
    with pytest.raises(InvalidArgument, match="1 dicts of parameters for 2 rows"):
        MinP()(torch.zeros(2, 3), [{}])
