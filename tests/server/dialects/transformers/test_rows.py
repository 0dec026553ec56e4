"""transformers' dialect: how rows are grouped into calls, and the results of rows."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import LogitNormalization, LogitsProcessorList, RepetitionPenaltyLogitsProcessor, TopKLogitsWarper

from tests.server.dialects.transformers.calling import VOCAB, dialect_of, logits_of, state_of


class Counts:
    """Keeps state that cannot be rebuilt from the history."""

    def __init__(self, start: int = 0) -> None:
        self.calls = start

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return scores + self.calls


def test_each_row_is_one_call_with_its_own_history() -> None:
    calls: list[Any] = []
    seen = lambda input_ids, scores: calls.append((input_ids, scores.shape)) or scores  # noqa: E731
    dialect = dialect_of(seen)
    states = [state_of(dialect, prompt)[0] for prompt in ([1, 2], [], [3])]
    dialect.process(states, logits_of(3))
    assert [ids.tolist() for ids, _ in calls] == [[[1, 2]], [[]], [[3]]]
    assert {ids.dtype for ids, _ in calls} == {torch.int64}
    assert {shape for _, shape in calls} == {(1, VOCAB)}


def test_the_history_grows_beyond_the_buffer_and_is_cut_back() -> None:
    seen: list[list[int]] = []

    def look(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        seen.append(input_ids[0].tolist())
        return scores

    dialect = dialect_of(look)
    state, history = state_of(dialect, [1, 2])
    for step in range(200):
        dialect.process([state], logits_of(1))
        assert seen.pop() == history.token_ids.tolist()
        history.extend([step % VOCAB, 3])
        if step % 7 == 0:
            history.rewind(len(history) - 2)
            dialect.rewind(state)
            history.append(5)


def test_only_new_ids_are_copied() -> None:
    addresses = []

    def look(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        addresses.append(input_ids.data_ptr())
        return scores

    dialect = dialect_of(look)
    state, history = state_of(dialect, [1] * 1000)
    for _ in range(900):
        dialect.process([state], logits_of(1))
        history.append(1)
    assert len(set(addresses)) == 1


def test_each_request_has_its_own_instance() -> None:
    dialect = dialect_of(Counts)
    first, second = state_of(dialect, [1])[0], state_of(dialect, [1])[0]
    logits = torch.zeros(2, VOCAB)
    dialect.process([first, second], logits)
    dialect.process([second], logits[1:])
    assert logits[:, 0].tolist() == [1, 3]


@pytest.mark.parametrize("shipped", [Counts(7), LogitsProcessorList([Counts(7)]), Counts(7).__call__])
def test_an_instance_is_copied_for_each_request(shipped: Any) -> None:
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


def test_a_failing_row_of_a_shared_call_does_not_affect_other_rows() -> None:
    dialect = dialect_of(TopKLogitsWarper(2))
    states = [state_of(dialect, [1])[0] for _ in range(3)]
    logits = logits_of(3)
    fails_for_nan = pytest.MonkeyPatch()
    original = TopKLogitsWarper.__call__

    def call(self: Any, input_ids: Any, scores: torch.Tensor) -> Any:
        if scores.isnan().any():
            raise ValueError("NaN")
        return original(self, input_ids, scores)

    with fails_for_nan.context() as patch:
        patch.setattr(TopKLogitsWarper, "__call__", call)
        logits[1, 3] = float("nan")
        dialect.process(states, logits)
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
