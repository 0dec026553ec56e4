"""transformers' dialect: construction of processors, and their parameters."""

from __future__ import annotations

import functools
import threading
from typing import Any

import pytest
import torch
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    MinLengthLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
)

from logitport import History, InvalidArgument, PayloadError
from logitport.dialects import InDialect
from logitport_session.dialects import RequestContext
from tests.server.dialects.transformers.calling import VOCAB, RunsAction, dialect_of, state_of


def test_parameters_are_arguments() -> None:
    dialect = dialect_of(MinLengthLogitsProcessor)
    states = [state_of(dialect, [1], {"min_length": n, "eos_token_id": ids})[0] for n, ids in [(1, 2), (2, [2, 3])]]
    logits = torch.zeros(2, VOCAB)
    dialect.process(states, logits)
    assert [row.isneginf().nonzero().flatten().tolist() for row in logits] == [[], [2, 3]]


def test_parameters_join_those_of_a_partial() -> None:
    dialect = dialect_of(functools.partial(MinLengthLogitsProcessor, 5, eos_token_id=2))
    logits = torch.zeros(2, VOCAB)
    dialect.process([state_of(dialect, [1])[0], state_of(dialect, [1], {"eos_token_id": 4})[0]], logits)
    assert [row.isneginf().nonzero().flatten().tolist() for row in logits] == [[2], [4]]


def test_arguments_of_a_partial_are_each_request_s_own() -> None:
    class Remembers:
        def __init__(self, calls: list[int]) -> None:
            self.calls = calls

        def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            self.calls.append(1)
            return scores + len(self.calls)

    shipped = functools.partial(Remembers, calls=[])
    for dialect in (dialect_of(shipped), dialect_of(shipped)):
        states = [state_of(dialect, [1])[0] for _ in range(2)]
        assert dialect.process(states, torch.zeros(2, VOCAB))[:, 0].tolist() == [1, 1]


def test_parameters_are_keywords_of_a_function() -> None:
    def add(input_ids: torch.Tensor, scores: torch.Tensor, alpha: float = 1, *, beta: float = 0) -> torch.Tensor:
        return scores + alpha + beta

    dialect = dialect_of(add)
    logits = torch.zeros(2, VOCAB)
    dialect.process([state_of(dialect, [1])[0], state_of(dialect, [1], {"alpha": 2, "beta": 3})[0]], logits)
    assert logits[:, 0].tolist() == [1, 5]


@pytest.mark.parametrize(
    ("processor", "params", "message"),
    [
        (MinLengthLogitsProcessor, {}, "missing a required argument: 'min_length'"),
        (MinLengthLogitsProcessor, {"min_length": 1, "eos_token_id": 2, "x": 3}, "unexpected keyword argument 'x'"),
        (MinLengthLogitsProcessor, {"min_length": -1, "eos_token_id": 2}, "has to be a non-negative integer"),
        (TemperatureLogitsWarper, {"temperature": 2}, "has to be a strictly positive float"),
        (MinLengthLogitsProcessor(3, 2), {"min_length": 2}, r"takes no parameters \(min_length\); ship its class"),
        (LogitsProcessorList(), {"a": 2}, r"takes no parameters \(a\)"),
        (functools.partial(TopKLogitsWarper, 3), {"top_k": 2}, "unexpected keyword argument 'top_k'"),
        (lambda input_ids, scores: scores, {"alpha": 2}, "unexpected keyword argument 'alpha'"),
        (lambda input_ids, scores, alpha: scores, {}, "missing a required argument: 'alpha'"),
    ],
)
def test_unsuitable_parameters_are_rejected(processor: Any, params: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        state_of(dialect_of(processor), [1], params)


def test_a_failure_without_parameters_is_a_load_failure() -> None:
    class Broken(LogitsProcessor):
        def __init__(self) -> None:
            raise OSError("no file")

    with pytest.raises(PayloadError, match="Broken raised OSError: no file"):
        state_of(dialect_of(Broken), [1])
    with pytest.raises(
        PayloadError, match=r"cannot be copied, as is needed for each request \(TypeError: .*lock.*ship its class"
    ):
        state_of(dialect_of(RunsAction(threading.Lock())), [1])  # type: ignore[arg-type]


def test_parameters_are_not_modified() -> None:
    class Eats(LogitsProcessor):
        def __init__(self, ids: list[int]) -> None:
            self.ids = ids
            ids.clear()

    params = {"ids": [1, 2]}
    state_of(dialect_of(Eats), [1], params)
    assert params == {"ids": [1, 2]}


def test_arguments_that_generate_passes_are_filled_in() -> None:
    class Asks(LogitsProcessor):
        def __init__(
            self, prompt_length_to_skip: int, encoder_input_ids: torch.Tensor, device: str, vocab_size: int, x: int = 1
        ) -> None:
            self.got = prompt_length_to_skip, encoder_input_ids, device, vocab_size, x

    state, _ = state_of(dialect_of(Asks), [4, 5])
    length, ids, device, vocab_size, x = state.processor.got
    assert (length, ids.tolist(), ids.dtype, device, vocab_size, x) == (2, [[4, 5]], torch.int64, "cpu", VOCAB, 1)
    given, _ = state_of(
        dialect_of(Asks), [4, 5], {"prompt_length_to_skip": 1, "vocab_size": 3, "encoder_input_ids": [1]}
    )
    assert given.processor.got[:1] == (1,)
    assert given.processor.got[1].tolist() == [1]
    assert given.processor.got[3] == 3


def test_the_tensors_of_an_instance_are_moved_to_the_device_of_the_logits() -> None:
    held = torch.zeros(2)
    shipped = RunsAction(lambda self: None)
    shipped.stops, shipped.table = [held, (held,)], {"a": {"b": held}}  # type: ignore[list-item, dict-item]
    history = History([1])
    state = dialect_of(shipped).start(RequestContext("r", history, {}, VOCAB, device="meta"), {})
    moved = state.processor
    tensors = [moved.tensor, moved.stops[0], moved.stops[1][0], moved.table["a"]["b"]]
    assert [one.device.type for one in tensors] == ["meta"] * 4
    assert tensors[1] is tensors[2] is tensors[3]
    assert held.device.type == shipped.tensor.device.type == "cpu"


def test_a_function_with_a_named_dialect_and_unknown_argument_names() -> None:
    dialect = dialect_of(InDialect(lambda a, b: b + 1, "transformers"))
    assert dialect.process([state_of(dialect, [1])[0]], torch.zeros(1, VOCAB)).tolist() == [[1.0] * VOCAB]
