"""vLLM's batch dialect: batch updates, random steps, errors, and logits."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
import torch

from logitport import History, InvalidArgument, ProcessorFailed
from logitport_session.dialects import RequestContext, make_dialect
from logitport_session.requests.active_request import ActiveRequest, ChainEntry
from logitport_session.steps.grouping import Row, Rows, group_rows, needs_logits
from logitport_session.stubs.vllm.exceptions import VLLMValidationError
from logitport_session.stubs.vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor, process_dict_updates

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from logitport_session.dialects import Dialect


VOCAB = 8


class RecordsUpdates(LogitsProcessor):
    """Records its batch updates."""

    made: ClassVar[list[RecordsUpdates]] = []
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


class Counts(RecordsUpdates):
    """Adds the number of output ids times `by` to the logit of the prompt's first id."""

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


class DialectRequest:
    """A request, and the facts for a naive model of it."""

    def __init__(self, dialect: Dialect, prompt: Sequence[int] = (1,), **params: Any) -> None:
        self.dialect = dialect
        self.history = History(prompt)
        self.prompt, self.output, self.by = list(prompt), list[int](), params.get("by")
        sampling = params.pop("sampling_params", {})
        self.state = dialect.start(RequestContext("r", self.history, sampling, VOCAB), params)
        self.advance: Any = dialect.token_callback(self.state)

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


def shipped_dialect(processor: Any = RecordsUpdates) -> Dialect:
    processor.made.clear()
    return make_dialect(processor, "its name", shipped=True)


def step(dialect: Dialect, *requests: DialectRequest, logits: torch.Tensor | None = None) -> torch.Tensor:
    given = torch.zeros(len(requests), VOCAB) if logits is None else logits
    return dialect.process([request.state for request in requests], given)


def test_one_instance_gets_the_batch_updates() -> None:
    dialect = shipped_dialect()
    first, second = DialectRequest(dialect, [1, 2], a=1), DialectRequest(dialect, [3])
    step(dialect, first, second)
    step(dialect, first, second)
    step(dialect, second)
    (instance,) = RecordsUpdates.made
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


def cut_back(draw: random.Random, request: DialectRequest) -> None:
    request.rewind(draw.randint(0, len(request.output)))


CHANGES: list[Callable[[random.Random, Dialect, list[DialectRequest]], None]] = [
    lambda draw, dialect, requests: requests.append(
        DialectRequest(dialect, [draw.randrange(VOCAB)], by=draw.choice((None, 1, 2, 3, 13)))
    ),
    lambda draw, _, requests: requests.remove(draw.choice(requests)) if requests else None,
    lambda draw, _, requests: draw.shuffle(requests),
    lambda draw, _, requests: cut_back(draw, draw.choice(requests)) if requests else None,
]


@pytest.mark.parametrize("seed", range(30))
def test_random_steps_equal_each_request_alone(seed: int) -> None:
    """Requests are added, removed, paused, cut back, reordered, and have several rows; some raise an error."""
    draw, dialect, requests = random.Random(seed), shipped_dialect(Counts), list[DialectRequest]()
    num_errors = 0
    for _ in range(64):
        for _ in range(draw.randrange(3)):
            draw.choice(CHANGES)(draw, dialect, requests)
        for request in requests:
            request.append(draw.randrange(VOCAB))
        rows = [request for request in requests for _ in range(draw.choice((0, 1, 1, 1, 1, 2)))]
        if not rows:
            continue
        if any(request.by == 13 and len(request.output) == 3 for request in rows):
            with pytest.raises(RuntimeError, match="thirteen"):
                step(dialect, *rows)
            num_errors += 1
        else:
            assert step(dialect, *rows).tolist() == [request.expected() for request in rows]
    assert len(Counts.made) <= 1 + num_errors, "only an error replaces the instance"


def test_a_rejection_by_validate_params_has_its_message() -> None:
    class Validates(RecordsUpdates):
        @classmethod
        def validate_params(cls, sampling_params: Any) -> None:
            error = (sampling_params.extra_args or {}).get("error")
            if error is not None:
                raise {"value": ValueError, "vllm": VLLMValidationError, "other": KeyError}[error]("not this one")

    dialect = shipped_dialect(Validates)
    dialect.validate({}, {})
    for error in ("value", "vllm"):
        with pytest.raises(InvalidArgument, match="its name: not this one"):
            dialect.validate({"error": error}, {})
    with pytest.raises(InvalidArgument, match="its name: not this one"):
        dialect.validate({}, {"extra_args": {"error": "value"}})
    with pytest.raises(KeyError):
        dialect.validate({"error": "other"}, {})


def test_changes_by_validate_params_are_kept() -> None:
    class Changes(RecordsUpdates):
        @classmethod
        def validate_params(cls, sampling_params: Any) -> None:
            sampling_params.extra_args["words"] = sampling_params.extra_args["words"].split()

    dialect = shipped_dialect(Changes)
    params = {"words": "a b"}
    dialect.validate(params, {})
    request = DialectRequest(dialect, [1], **params)
    step(dialect, request)
    assert Changes.made[0].updates[0].added[0][1].extra_args == {"words": ["a", "b"]}  # type: ignore[union-attr]
    assert params == {"words": "a b"}


def test_only_the_request_that_cannot_be_added_fails() -> None:
    dialect = shipped_dialect(Counts)
    good, also_good = DialectRequest(dialect, [1], by=1), DialectRequest(dialect, [2], by=2)
    good.append(5)
    also_good.append(5)
    step(dialect, good, also_good)
    bad = DialectRequest(dialect, [3], by="bomb")
    result = step(dialect, good, bad, also_good)
    assert {place: str(error) for place, error in dialect.failed.items()} == {1: "boom"}
    assert result[0].tolist() == good.expected()
    assert result[2].tolist() == also_good.expected()
    assert step(dialect, good, also_good)[1].tolist() == also_good.expected()
    assert dialect.failed == {}
    step(dialect, bad, DialectRequest(dialect, by="bomb"))
    assert sorted(dialect.failed) == [0, 1]


def test_the_result_for_the_other_requests_is_checked() -> None:
    class KeepsOne(Counts):
        def apply(self, logits: torch.Tensor) -> torch.Tensor:
            return logits[:1] + 1

    dialect = shipped_dialect(KeepsOne)
    good, bad = [DialectRequest(dialect, [1], by=1) for _ in range(2)], DialectRequest(dialect, by="bomb")
    with pytest.raises(ProcessorFailed, match=r"returned a tensor of shape \[1, 8\]"):
        step(dialect, *good, bad)


def test_an_error_that_no_single_request_causes() -> None:
    class Small(RecordsUpdates):
        def update_state(self, batch_update: BatchUpdate | None) -> None:
            if batch_update is not None and batch_update.batch_size > 1:
                raise MemoryError("two are too many")

    dialect = shipped_dialect(Small)
    one, other = DialectRequest(dialect), DialectRequest(dialect)
    with pytest.raises(MemoryError):
        step(dialect, one, other)
    step(dialect, one)


def test_a_result_of_none() -> None:
    class Forgets(RecordsUpdates):
        invariant = True

        def apply(self, logits: torch.Tensor) -> torch.Tensor:
            return None  # type: ignore[return-value]

    dialect = shipped_dialect(Forgets)
    request = DialectRequest(dialect, sampling_params={"temperature": 0.5})
    with pytest.raises(ProcessorFailed, match="returned NoneType"):
        step(dialect, request)
    with pytest.raises(ProcessorFailed, match="returned NoneType"):
        step(dialect, request, request)


def test_logits_of_half_precision_are_computed_in_single() -> None:
    class ChecksDtype(RecordsUpdates):
        def apply(self, logits: torch.Tensor) -> torch.Tensor:
            assert logits.dtype == torch.float32
            return logits + 1

    dialect = shipped_dialect(ChecksDtype)
    request = DialectRequest(dialect)
    assert step(dialect, request, logits=torch.ones(1, VOCAB, dtype=torch.bfloat16)).tolist() == [[2.0] * VOCAB]


class DropsBelow(RecordsUpdates):
    """A simple min-p: argmax-invariant, with results that depend on the temperature."""

    invariant = True
    seen: ClassVar[list[torch.Tensor]] = []

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        self.seen.append(logits.clone())
        probabilities = logits.softmax(-1)
        return logits.masked_fill_(probabilities < 0.2 * probabilities.amax(-1, keepdim=True), float("-inf"))


def test_an_argmax_invariant_processor_sees_logits_after_temperature() -> None:
    dialect = shipped_dialect(DropsBelow)
    DropsBelow.seen.clear()
    temperatures = (None, 0.0, 0.3, 2.0, 1.0)
    requests = [DialectRequest(dialect, sampling_params={"temperature": temperature}) for temperature in temperatures]
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


def test_its_changes_are_scaled_back() -> None:
    class Adds(RecordsUpdates):
        invariant = True

        def apply(self, logits: torch.Tensor) -> torch.Tensor:
            return logits + 1

    dialect = shipped_dialect(Adds)
    hot = DialectRequest(dialect, sampling_params={"temperature": 2.0})
    assert step(dialect, hot, logits=torch.full((1, VOCAB), 4.0)).tolist() == [[6.0] * VOCAB]


def test_it_is_skipped_when_every_request_of_a_step_is_greedy_and_only_then() -> None:
    dialect = shipped_dialect(DropsBelow)
    rows = []
    for slot, temperature in enumerate((0, 0.0)):
        request = DialectRequest(dialect, sampling_params={"temperature": temperature})
        chain = [ChainEntry(dialect, request.state)]
        rows.append(Row(slot, ActiveRequest(slot, 0, request.history, chain, skip=False, greedy=True)))
    assert group_rows(Rows(rows, greedy=True), 0) == []
    assert len(group_rows(Rows(rows, greedy=False), 0)[0].rows) == 2


def test_it_is_not_skipped_before_a_processor_that_is_not_invariant() -> None:
    """Otherwise the result of a greedy request would depend on whether the other requests are greedy."""
    invariant, other = shipped_dialect(DropsBelow), shipped_dialect(Counts)
    requests = [DialectRequest(dialect, by=1) for dialect in (invariant, other, invariant)]
    chain = [ChainEntry(one.dialect, one.state) for one in requests]
    rows = [Row(0, ActiveRequest(0, 0, requests[0].history, chain, skip=False, greedy=True))]
    assert [len(groups) for groups in Rows(rows, greedy=True).groups] == [1, 1, 0]
    assert needs_logits(rows[0].request, greedy=True)
    assert not needs_logits(ActiveRequest(0, 0, requests[0].history, chain[2:], skip=False), greedy=True)


def test_a_class_without_is_argmax_invariant_is_not_invariant() -> None:
    class Plain:
        made: ClassVar[list[Any]] = []

        def __init__(self, vllm_config: Any, device: Any, is_pin_memory: bool) -> None: ...

        def update_state(self, batch_update: Any) -> None: ...

        def apply(self, logits: torch.Tensor) -> torch.Tensor:
            return logits + 1

    dialect = shipped_dialect(Plain)
    assert step(dialect, DialectRequest(dialect)).tolist() == [[1.0] * VOCAB]
    assert not dialect.argmax_invariant
