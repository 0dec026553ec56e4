"""transformers' dialect: construction and parameters of processors, rows, and state."""

from __future__ import annotations

import functools
import threading
from typing import TYPE_CHECKING, Any

import pytest
import torch
from transformers import (
    LogitNormalization,
    LogitsProcessor,
    LogitsProcessorList,
    MinLengthLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    SynthIDTextWatermarkLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
)

from logitport import History, InvalidArgument, PayloadError, StateLost
from logitport_session.dialects import RequestContext, make_dialect
from tests.server.dialects.lost_state import assert_lost

if TYPE_CHECKING:
    from collections.abc import Callable

    from logitport_session.dialects import Dialect


VOCAB = 16


def dialect_of(processor: object) -> Dialect:
    return make_dialect(processor, "its name", shipped=True)


def state_of(dialect: Dialect, prompt: list[int], params: dict[str, Any] | None = None) -> tuple[Any, History]:
    history = History(prompt)
    return dialect.start(RequestContext("r-1", history, {}, VOCAB), params or {}), history


def logits_of(rows: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(rows)).to(dtype)


class RunsAction:
    """Calls a function with itself at each call."""

    def __init__(self, act: Callable[[Any], Any]) -> None:
        self.act, self.tensor, self.stops, self.table = act, torch.zeros(3), [1, [2]], {"a": {1}}

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.act(self)
        return scores


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
    with pytest.raises(PayloadError, match=r"cannot be copied.*ship its class"):
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


class Counts:
    """Keeps state that cannot be rebuilt from the history."""

    def __init__(self, start: int = 0) -> None:
        self.calls = start

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return scores + self.calls


def test_the_history_grows_beyond_its_buffer_which_only_new_ids_are_copied_to() -> None:
    seen: list[tuple[list[int], int]] = []

    def look(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        seen.append((input_ids[0].tolist(), input_ids.data_ptr()))
        return scores

    dialect = dialect_of(look)
    state, history = state_of(dialect, [1, 2])
    buffers = set()
    for step in range(200):
        dialect.process([state], logits_of(1))
        ids, address = seen.pop()
        assert ids == history.token_ids.tolist()
        buffers.add(address)
        history.extend([step % VOCAB, 3])
        if step % 7 == 0:
            history.rewind(len(history) - 2)
            dialect.rewind(state)
            history.append(5)
    assert len(buffers) <= 5


@pytest.mark.parametrize(
    "shipped", [functools.partial(Counts, 7), Counts(7), LogitsProcessorList([Counts(7)]), Counts(7).__call__]
)
def test_each_request_has_its_own_instance(shipped: Any) -> None:
    dialect = dialect_of(shipped)
    logits = torch.zeros(2, VOCAB)
    for _ in range(2):
        dialect.process([state_of(dialect, [1])[0], state_of(dialect, [2])[0]], logits)
    assert logits[:, 0].tolist() == [16, 16]


def test_rows_of_any_length_share_a_call_if_the_history_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = spied(monkeypatch, TopKLogitsWarper)
    dialect = dialect_of(TopKLogitsWarper)
    states = [state_of(dialect, prompt, {"top_k": k})[0] for prompt, k in [([1], 2), ([], 3), ([1, 2], 2)]]
    logits = logits_of(3)
    kept = logits.clone()
    assert dialect.process(states, logits) is logits
    assert (logits.isfinite().sum(1)).tolist() == [2, 3, 2]
    assert torch.equal(logits[logits.isfinite()], kept[logits.isfinite()])
    assert calls == [(None, 2), ([[]], 1)]


def test_rows_of_one_length_share_a_call_of_a_stateless_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = spied(monkeypatch, RepetitionPenaltyLogitsProcessor)
    dialect = dialect_of(RepetitionPenaltyLogitsProcessor(2.0))
    prompts = [[1], [3, 4], [2], [5, 6]]
    logits = torch.ones(4, VOCAB)
    dialect.process([state_of(dialect, prompt)[0] for prompt in prompts], logits)
    assert [(row == 0.5).nonzero().flatten().tolist() for row in logits] == prompts
    assert calls == [([[1], [2]], 2), ([[3, 4], [5, 6]], 2)]


def test_a_list_of_stateless_processors_is_stateless(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = spied(monkeypatch, TopKLogitsWarper)
    dialect = dialect_of(LogitsProcessorList([TopKLogitsWarper(2), LogitNormalization()]))
    dialect.process([state_of(dialect, prompt)[0] for prompt in ([1], [2, 3])], logits_of(2))
    assert calls == [(None, 2)]


def test_a_subclass_of_a_stateless_processor_is_not_stateless(monkeypatch: pytest.MonkeyPatch) -> None:
    class Derived(TopKLogitsWarper):
        pass

    calls = spied(monkeypatch, TopKLogitsWarper)
    dialect = dialect_of(Derived(2))
    dialect.process([state_of(dialect, [1])[0] for _ in range(2)], logits_of(2))
    assert calls == [([[1]], 1), ([[1]], 1)]


def spied(monkeypatch: pytest.MonkeyPatch, cls: type[Any]) -> list[Any]:
    """Record the ids and the number of rows of each call of a class's instances."""
    calls: list[Any] = []
    original = cls.__call__

    def call(self: Any, input_ids: Any, scores: torch.Tensor) -> Any:
        calls.append((None if input_ids is None else input_ids.tolist(), len(scores)))
        return original(self, input_ids, scores)

    monkeypatch.setattr(cls, "__call__", call)
    return calls


def test_a_stateless_processor_that_reads_the_history_unexpectedly_is_called_per_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(TopKLogitsWarper, "__call__", lambda _, input_ids, scores: scores + input_ids.shape[1])
    dialect = dialect_of(TopKLogitsWarper(2))
    logits = torch.zeros(2, VOCAB)
    dialect.process([state_of(dialect, prompt)[0] for prompt in ([1], [2, 3])], logits)
    assert not dialect.failed
    assert logits[:, 0].tolist() == [1, 2]


# Results of rows.


def test_a_failing_row_does_not_affect_other_rows() -> None:
    def odd(input_ids: torch.Tensor, scores: torch.Tensor) -> Any:
        kind = int(input_ids[0, -1])
        if kind == 0:
            raise KeyboardInterrupt("not again")
        return [None, None, scores[0], scores.long(), scores.tolist(), scores * 2][kind]

    dialect = dialect_of(odd)
    logits = torch.ones(7, VOCAB)
    states = [state_of(dialect, [kind])[0] for kind in (5, 0, 1, 2, 3, 4, 5)]
    dialect.process(states, logits)
    assert sorted(dialect.failed) == [1, 2, 3, 4, 5]
    assert isinstance(dialect.failed[1], KeyboardInterrupt)
    assert "returned NoneType" in str(dialect.failed[2])
    assert "returned a tensor of shape [16]" in str(dialect.failed[3])
    assert "returned a tensor of dtype torch.int64" in str(dialect.failed[4])
    assert logits[:, 0].tolist() == [2, 1, 1, 1, 1, 1, 2]
    dialect.process(states[:1], logits[:1])
    assert not dialect.failed


def test_a_failing_row_of_a_shared_call_does_not_affect_other_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    original = TopKLogitsWarper.__call__

    def call(self: Any, input_ids: Any, scores: torch.Tensor) -> Any:
        if scores.isnan().any():
            raise ValueError("NaN")
        return original(self, input_ids, scores)

    monkeypatch.setattr(TopKLogitsWarper, "__call__", call)
    dialect = dialect_of(TopKLogitsWarper(2))
    logits = logits_of(3)
    logits[1, 3] = float("nan")
    dialect.process([state_of(dialect, [1])[0] for _ in range(3)], logits)
    assert list(dialect.failed) == [1]
    assert logits[[0, 2]].isfinite().sum(1).tolist() == [2, 2]


def test_a_processor_may_reshape_or_reuse_its_argument() -> None:
    def twice_in_place(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        scores.mul_(2)
        scores.t_()
        return scores.reshape(1, -1)

    dialect = dialect_of(twice_in_place)
    logits = logits_of(2)
    expected = logits * 2
    dialect.process([state_of(dialect, [1])[0] for _ in range(2)], logits)
    assert not dialect.failed
    assert torch.equal(logits, expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_scores_are_float32_whatever_the_logits_are(dtype: torch.dtype) -> None:
    seen = []

    def large(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        seen.append(scores.dtype)
        limits = torch.finfo(torch.float32)
        scores[0, :4] = torch.tensor([limits.max, limits.min, torch.inf, -torch.inf])
        return scores

    dialect = dialect_of(large)
    logits = logits_of(1, dtype)
    kept = logits.clone()
    dialect.process([state_of(dialect, [1])[0]], logits)
    assert seen == [torch.float32]
    most = min(torch.finfo(dtype).max, torch.finfo(torch.float32).max)
    assert logits[0, :4].tolist() == [most, -most, torch.inf, -torch.inf]
    assert torch.equal(logits[0, 4:], kept[0, 4:])


STATEFUL: list[Callable[[Any], object]] = [
    lambda self: self.stops[1].append(3),
    lambda self: self.tensor.add_(1),
    lambda self: setattr(self, "lock", threading.Lock()),
]


@pytest.mark.parametrize("act", STATEFUL)
def test_state_that_cannot_be_rebuilt(act: Callable[[Any], object]) -> None:
    dialect = dialect_of(RunsAction(act))
    state, history = state_of(dialect, [1])
    dialect.check_rebuildable(state)
    history.append(2)
    dialect.process([state], logits_of(1))
    assert not dialect.failed
    assert_lost(dialect, state, history, 1)


def test_state_that_a_generator_or_a_watermark_keeps() -> None:
    class Draws(LogitsProcessor):
        def __init__(self) -> None:
            self.generator = torch.Generator().manual_seed(3)

        def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            return scores + torch.randn(scores.shape, generator=self.generator)

    watermark = {"ngram_len": 2, "keys": [1, 2], "sampling_table_size": 8, "sampling_table_seed": 0}
    for processor, params in (
        (Draws, {}),
        (SynthIDTextWatermarkLogitsProcessor, {**watermark, "context_history_size": 4}),
    ):
        dialect = dialect_of(processor)
        state, _ = state_of(dialect, [1], params)
        dialect.check_rebuildable(state)
        dialect.process([state], logits_of(1))
        assert not dialect.failed
        with pytest.raises(StateLost):
            dialect.check_rebuildable(state)


@pytest.mark.parametrize(
    "processor",
    [RunsAction(lambda self: None), SequenceBiasLogitsProcessor([[[1, 2], 3.0]]), lambda input_ids, scores: scores],
)
def test_values_prepared_by_a_first_call_are_not_state(processor: Any) -> None:
    dialect = dialect_of(processor)
    state, history = state_of(dialect, [1])
    for _ in range(2):
        history.append(2)
        dialect.process([state], logits_of(1))
        history.rewind(1)
        dialect.rewind(state)
    dialect.check_rebuildable(state)
