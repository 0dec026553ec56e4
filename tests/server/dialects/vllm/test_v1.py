"""vLLM's batch dialect: what instances are told, live lists, temperature, and what an error costs."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
import torch

from logitport import History, InvalidParams, LoadFailed, ProcessorFailed
from logitport_server.dialects import RequestContext, speak
from logitport_server.grouping import Row, Rows, group, needs_logits
from logitport_server.requests import ActiveRequest, Link
from logitport_server.worker.standins.vllm.exceptions import VLLMValidationError
from logitport_server.worker.standins.vllm.v1.sample.logits_processor import (
    BatchUpdate,
    LogitsProcessor,
    process_dict_updates,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from logitport_server.dialects import Dialect

VOCAB = 8


class Logs(LogitsProcessor):
    """Notes what it is told, and does what a function does."""

    made: ClassVar[list[Logs]] = []
    invariant: ClassVar[bool] = False

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        self.updates: list[BatchUpdate | None] = []
        self.made.append(self)

    def is_argmax_invariant(self) -> bool:
        return self.invariant

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        self.updates.append(batch_update)

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        return logits


class Counts(Logs):
    """Adds, to the logit of each row's first id, the number of its output ids, times `by`."""

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        super().__init__(vllm_config, device, is_pin_memory)
        self.states: dict[int, tuple[int, list[int], list[int]]] = {}

    @staticmethod
    def new_state(params: Any, prompt: list[int] | None, output: list[int]) -> tuple[int, list[int], list[int]] | None:
        by = (params.extra_args or {}).get("by")
        if by == "bomb":
            raise ValueError("boom")
        assert prompt is not None
        return None if by is None else (by, prompt, output)

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        super().update_state(batch_update)
        process_dict_updates(self.states, batch_update, self.new_state)

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        for index, (by, prompt, output) in self.states.items():
            if by == 13 and len(output) == 3:
                raise RuntimeError("thirteen")
            logits[index, prompt[0]] += by * len(output)
        return logits


class Told:
    """A request, and what of it a naive model knows."""

    def __init__(self, dialect: Dialect, prompt: Sequence[int] = (1,), **params: Any) -> None:
        self.dialect = dialect
        self.history = History(prompt)
        self.prompt, self.output, self.by = list(prompt), list[int](), params.get("by")
        sampling = params.pop("sampling_params", {})
        self.state = dialect.start(RequestContext("r", self.history, sampling, VOCAB), params)
        self.advance: Any = dialect.advancer(self.state)

    def append(self, token_id: int) -> None:
        self.history.append(token_id)
        self.output.append(token_id)
        self.advance(token_id)

    def rewind(self, outputs: int) -> None:
        del self.output[outputs:]
        self.history.rewind(len(self.prompt) + outputs)
        self.dialect.rewind(self.state)

    def expected(self) -> list[float]:
        row = [0.0] * VOCAB
        row[self.prompt[0]] += (self.by or 0) * len(self.output)
        return row


def speaks(processor: Any = Logs) -> Dialect:
    processor.made.clear()
    return speak(processor, "its name", shipped=True)


def step(dialect: Dialect, *requests: Told, logits: torch.Tensor | None = None) -> torch.Tensor:
    given = torch.zeros(len(requests), VOCAB) if logits is None else logits
    return dialect.process([request.state for request in requests], given)


def test_one_instance_which_is_told_of_the_batch() -> None:
    dialect = speaks()
    first, second = Told(dialect, [1, 2], a=1), Told(dialect, [3])
    step(dialect, first, second)
    step(dialect, first, second)
    step(dialect, second)
    (instance,) = Logs.made
    added, nothing, removed = instance.updates
    assert nothing is None
    assert added is not None
    assert (added.batch_size, added.removed, added.moved) == (2, [], [])
    (index, params, prompt, output), other = added.added
    assert (index, params.extra_args, prompt, output) == (0, {"a": 1}, [1, 2], [])
    assert (other[0], other[1].extra_args, other[2:]) == (1, None, ([3], []))
    assert removed is not None
    assert [(source, target, kind.name) for source, target, kind in removed.moved] == [(1, 0, "UNIDIRECTIONAL")]
    assert (removed.batch_size, removed.removed, removed.added) == (1, [], [])


def test_the_lists_are_live() -> None:
    dialect = speaks()
    request = Told(dialect, [1])
    step(dialect, request)
    output = Logs.made[0].updates[0].added[0][3]  # type: ignore[union-attr]
    request.append(5)
    assert output == [5]
    step(dialect, request)
    assert Logs.made[0].updates[1] is None


def test_a_request_that_is_away_for_a_step_comes_back_as_a_new_one() -> None:
    dialect = speaks(Counts)
    stays, comes_and_goes = Told(dialect, [1], by=1), Told(dialect, [2], by=1)
    step(dialect, stays, comes_and_goes)
    step(dialect, stays)
    comes_and_goes.append(4)
    assert step(dialect, stays, comes_and_goes)[1].tolist() == comes_and_goes.expected()
    assert len(Counts.made) == 1
    assert [len(update.added) for update in Counts.made[0].updates if update] == [2, 0, 1]


def test_a_history_that_was_cut_back_is_a_new_request() -> None:
    dialect = speaks(Counts)
    request = Told(dialect, [1], by=1)
    for token_id in (3, 4, 5):
        request.append(token_id)
    step(dialect, request)
    request.rewind(1)
    assert step(dialect, request)[0].tolist() == request.expected()
    update = Counts.made[0].updates[1]
    assert update is not None
    assert (update.removed, [index for index, *_ in update.added]) == ([], [0])


def test_a_request_on_several_rows_of_a_call() -> None:
    dialect = speaks(Counts)
    one, other = Told(dialect, [1], by=1), Told(dialect, [2], by=2)
    one.append(3)
    other.append(3)
    result = step(dialect, one, one, other, one)
    assert result.tolist() == [request.expected() for request in (one, one, other, one)]
    assert len(Counts.made) == 1


def test_validate_params_refuses_with_its_message() -> None:
    class Validates(Logs):
        @classmethod
        def validate_params(cls, sampling_params: Any) -> None:
            error = (sampling_params.extra_args or {}).get("error")
            if error is not None:
                raise {"value": ValueError, "vllm": VLLMValidationError, "other": KeyError}[error]("not this one")

    dialect = speaks(Validates)
    dialect.validate({}, {})
    for error in ("value", "vllm"):
        with pytest.raises(InvalidParams, match="its name: not this one"):
            dialect.validate({"error": error}, {})
    with pytest.raises(InvalidParams, match="its name: not this one"):
        dialect.validate({}, {"extra_args": {"error": "value"}})
    with pytest.raises(KeyError):
        dialect.validate({"error": "other"}, {})


def test_what_validate_params_changes_stays() -> None:
    class Changes(Logs):
        @classmethod
        def validate_params(cls, sampling_params: Any) -> None:
            sampling_params.extra_args["words"] = sampling_params.extra_args["words"].split()

    dialect = speaks(Changes)
    params = {"words": "a b"}
    dialect.validate(params, {})
    request = Told(dialect, [1], **params)
    step(dialect, request)
    assert Changes.made[0].updates[0].added[0][1].extra_args == {"words": ["a", "b"]}  # type: ignore[union-attr]
    assert params == {"words": "a b"}


def test_a_class_that_cannot_be_made() -> None:
    class Wants(Logs):
        def __init__(self, tokenizer: str) -> None:
            self.tokenizer = tokenizer

    with pytest.raises(LoadFailed, match="vllm_config, device, is_pin_memory"):
        speaks(Wants)

    class Abstract(LogitsProcessor):
        pass

    with pytest.raises(LoadFailed, match="abstract"):
        Told(speak(Abstract, "its name", shipped=True))


def test_logits_of_half_precision_are_computed_in_single() -> None:
    class Looks(Logs):
        def apply(self, logits: torch.Tensor) -> torch.Tensor:
            assert logits.dtype == torch.float32
            return logits + 1

    dialect = speaks(Looks)
    request = Told(dialect)
    assert step(dialect, request, logits=torch.ones(1, VOCAB, dtype=torch.bfloat16)).tolist() == [[2.0] * VOCAB]


class DropsBelow(Logs):
    """Min-p by hand: what is argmax-invariant, and what temperature makes a difference to."""

    invariant = True
    seen: ClassVar[list[torch.Tensor]] = []

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        self.seen.append(logits.clone())
        probabilities = logits.softmax(-1)
        return logits.masked_fill_(probabilities < 0.2 * probabilities.amax(-1, keepdim=True), float("-inf"))


def test_what_is_argmax_invariant_sees_logits_after_temperature() -> None:
    dialect = speaks(DropsBelow)
    DropsBelow.seen.clear()
    temperatures = (None, 0.0, 0.3, 2.0, 1.0)
    requests = [Told(dialect, sampling_params={"temperature": temperature}) for temperature in temperatures]
    assert dialect.argmax_invariant
    logits = torch.randn(5, VOCAB, generator=torch.Generator().manual_seed(1)) * 3
    before = logits.clone()
    result = step(dialect, *requests, logits=logits)
    divided = before / torch.tensor([[1.0], [1.0], [0.3], [2.0], [1.0]])
    assert torch.equal(DropsBelow.seen[0], divided)
    kept = ~torch.isinf(result)
    assert torch.equal(result[kept], before[kept])  # to the bit
    probabilities = divided.softmax(-1)
    assert torch.equal(kept, probabilities >= 0.2 * probabilities.amax(-1, keepdim=True))


def test_what_it_changes_is_scaled_back() -> None:
    class Adds(Logs):
        invariant = True

        def apply(self, logits: torch.Tensor) -> torch.Tensor:
            return logits + 1

    dialect = speaks(Adds)
    hot = Told(dialect, sampling_params={"temperature": 2.0})
    assert step(dialect, hot, logits=torch.full((1, VOCAB), 4.0)).tolist() == [[6.0] * VOCAB]


def test_it_is_skipped_when_every_request_of_a_step_is_greedy_and_only_then() -> None:
    dialect = speaks(DropsBelow)
    rows = []
    for slot, temperature in enumerate((0, 0.0)):
        told = Told(dialect, sampling_params={"temperature": temperature})
        chain = [Link(dialect, told.state)]
        rows.append(Row(slot, ActiveRequest(slot, 0, told.history, chain, skip=False, greedy=True)))
    assert group(Rows(rows, greedy=True), 0) == []
    assert len(group(Rows(rows, greedy=False), 0)[0].rows) == 2


def test_it_is_not_skipped_before_one_that_is_not_invariant() -> None:
    """Else what a greedy request gets would depend on whether the others are greedy, too."""
    invariant, other = speaks(DropsBelow), speaks(Counts)
    told = [Told(dialect, by=1) for dialect in (invariant, other, invariant)]
    chain = [Link(one.dialect, one.state) for one in told]
    rows = [Row(0, ActiveRequest(0, 0, told[0].history, chain, skip=False, greedy=True))]
    assert [len(groups) for groups in Rows(rows, greedy=True).groups] == [1, 1, 0]
    assert needs_logits(rows[0].request, greedy=True)
    assert not needs_logits(ActiveRequest(0, 0, told[0].history, chain[2:], skip=False), greedy=True)


def test_without_is_argmax_invariant_it_is_none() -> None:
    class Plain:
        made: ClassVar[list[Any]] = []

        def __init__(self, vllm_config: Any, device: Any, is_pin_memory: bool) -> None: ...

        def update_state(self, batch_update: Any) -> None: ...

        def apply(self, logits: torch.Tensor) -> torch.Tensor:
            return logits + 1

    dialect = speaks(Plain)
    assert step(dialect, Told(dialect)).tolist() == [[1.0] * VOCAB]
    assert not dialect.argmax_invariant


def test_an_instance_that_raised_is_replaced() -> None:
    dialect = speaks(Counts)
    bad, good = Told(dialect, [1], by=13), Told(dialect, [2], by=2)
    for token_id in (3, 4, 5):
        bad.append(token_id)
        good.append(token_id)
    with pytest.raises(RuntimeError, match="thirteen"):
        step(dialect, good, bad)
    assert step(dialect, good)[0].tolist() == good.expected()
    assert len(Counts.made) == 2


def test_a_request_that_cannot_be_added_fails_alone() -> None:
    dialect = speaks(Counts)
    good, also_good = Told(dialect, [1], by=1), Told(dialect, [2], by=2)
    good.append(5)
    also_good.append(5)
    step(dialect, good, also_good)
    bad = Told(dialect, [3], by="bomb")
    result = step(dialect, good, bad, also_good)
    assert {place: str(error) for place, error in dialect.failed.items()} == {1: "boom"}
    assert result[0].tolist() == good.expected()
    assert result[2].tolist() == also_good.expected()
    assert step(dialect, good, also_good)[1].tolist() == also_good.expected()
    assert dialect.failed == {}


def test_what_is_returned_for_the_others_is_checked() -> None:
    class KeepsOne(Counts):
        def apply(self, logits: torch.Tensor) -> torch.Tensor:
            return logits[:1] + 1

    dialect = speaks(KeepsOne)
    good, bad = [Told(dialect, [1], by=1) for _ in range(2)], Told(dialect, by="bomb")
    with pytest.raises(ProcessorFailed, match=r"returned a tensor of shape \[1, 8\]"):
        step(dialect, *good, bad)


def test_all_that_cannot_be_added_fail() -> None:
    dialect = speaks(Counts)
    step(dialect, Told(dialect, by="bomb"), Told(dialect, by="bomb"))
    assert sorted(dialect.failed) == [0, 1]


def test_an_error_that_no_request_alone_is_the_cause_of() -> None:
    class Small(Logs):
        def update_state(self, batch_update: BatchUpdate | None) -> None:
            if batch_update is not None and batch_update.batch_size > 1:
                raise MemoryError("two are too many")

    dialect = speaks(Small)
    one, other = Told(dialect), Told(dialect)
    with pytest.raises(MemoryError):
        step(dialect, one, other)
    step(dialect, one)


def test_a_result_that_is_none() -> None:
    class Forgets(Logs):
        invariant = True

        def apply(self, logits: torch.Tensor) -> torch.Tensor:
            return None  # type: ignore[return-value]

    dialect = speaks(Forgets)
    request = Told(dialect, sampling_params={"temperature": 0.5})
    with pytest.raises(ProcessorFailed, match="returned NoneType"):
        step(dialect, request)
    with pytest.raises(ProcessorFailed, match="returned NoneType"):
        step(dialect, request, request)


def test_state_can_be_rebuilt() -> None:
    dialect = speaks(Counts)
    request = Told(dialect, [1], by=1)
    request.append(2)
    step(dialect, request)
    dialect.check_rebuildable(request.state)
    request.history.append(3)
    request.output.append(3)
    dialect.rebuild(request.state)
    assert step(dialect, request)[0].tolist() == request.expected()


CHURN: list[Callable[[random.Random, Dialect, list[Told]], None]] = [
    lambda draw, dialect, told: told.append(
        Told(dialect, [draw.randrange(VOCAB)], by=draw.choice((None, 1, 2, 3, 13)))
    ),
    lambda draw, _, told: told.remove(draw.choice(told)) if told else None,
    lambda draw, _, told: draw.shuffle(told),
    lambda draw, _, told: draw.choice(told).rewind(0) if told else None,
]


@pytest.mark.parametrize("seed", range(30))
def test_any_life_of_a_batch_is_as_if_each_request_were_alone(seed: int) -> None:
    """Requests come, go, pause, are cut back, change places and stand on several rows; one in five is a bomb."""
    draw, dialect, told = random.Random(seed), speaks(Counts), list[Told]()
    for _ in range(64):
        for _ in range(draw.randrange(3)):
            draw.choice(CHURN)(draw, dialect, told)
        for request in told:
            request.append(draw.randrange(VOCAB))
        rows = [request for request in told for _ in range(draw.choice((0, 1, 1, 1, 1, 2)))]
        if not rows:
            continue
        if any(request.by == 13 and len(request.output) == 3 for request in rows):
            with pytest.raises(RuntimeError, match="thirteen"):
                step(dialect, *rows)
        else:
            assert step(dialect, *rows).tolist() == [request.expected() for request in rows]
