"""The dialect of vLLM's revised model runner: contexts of calls, slots and their buffers, and errors."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pytest
import torch

from logitport import History, PayloadError, ProcessorFailed
from logitport_server.worker.worker_processor import WorkerProcessor
from logitport_session.dialects import RequestContext, make_dialect
from logitport_session.dialects.vllm import v2
from logitport_session.stubs.vllm.v1.worker.gpu.sample.logits_processor import LogitsContext, LogitsProcessor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from logitport_session.dialects import Dialect
    from logitport_session.stubs.vllm.v1.worker.gpu.sample.logits_processor import LogitsContext


VOCAB = 6


class RecordsCalls(LogitsProcessor):
    """Records the calls of all its instances."""

    calls: ClassVar[list[Any]]
    contexts: ClassVar[list[LogitsContext]]

    def __init_subclass__(cls) -> None:
        cls.calls, cls.contexts = [], []

    def __init__(self, vllm_config: Any, req_states: Any) -> None:
        self.config, self.states = vllm_config, req_states
        self.calls.append("made")

    def add_request(self, req_idx: int, sampling_params: Any) -> Any:
        params = sampling_params.extra_args or {}
        if "refuse" in params:
            raise ValueError("refuse")
        self.calls.append(("add", req_idx))
        return params.get("say", True)

    def apply_staged_writes(self) -> None:
        self.calls.append("flush")

    def apply(self, logits: torch.Tensor, ctx: LogitsContext) -> torch.Tensor:
        self.calls.append("apply")
        self.contexts.append(ctx)
        return logits


def recording_class() -> type[RecordsCalls]:
    class Recording(RecordsCalls):
        pass

    return Recording


class Requests:
    """Requests of one dialect.

    Attributes:
        dialect: dialect of the processor's class.
        states: states of the requests, in the order of their creation.
    """

    def __init__(self, processor: Any, context: dict[str, Any] | None = None) -> None:
        self.dialect: Dialect = make_dialect(processor, "its name", shipped=True)
        self.states: list[Any] = []
        self.histories: list[History] = []
        self._context = context or {}

    def add(self, prompt: Sequence[int] = (), output: Sequence[int] = (), **params: Any) -> Any:
        self.histories.append(History(prompt, output))
        context = RequestContext("r", self.histories[-1], {}, VOCAB, **self._context)
        self.states.append(self.dialect.start(context, params))
        return self.states[-1]

    def call(self, *rows: tuple[int, Sequence[int]] | int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Make one call; each row is the number of a request, and the draft tokens before the row."""
        placed = [row if isinstance(row, tuple) else (row, ()) for row in rows]
        if any(drafts for _, drafts in placed):
            self.dialect.drafts = [drafts for _, drafts in placed]
        logits = torch.arange(float(len(rows) * VOCAB)).view(len(rows), VOCAB).to(dtype)
        result = self.dialect.process([self.states[number] for number, _ in placed], logits)
        self.dialect.drafts = ()
        return result


def fields(context: LogitsContext) -> dict[str, list[int]]:
    return {name: value.tolist() for name, value in vars(context).items()}


@pytest.mark.parametrize(
    ("rows", "expanded", "indices", "positions", "input_ids", "pos", "bounds"),
    [
        ((1, 0), [0, 1], [0, 1], [0, 0], [4, 3], [0, 2], [1, 3]),
        (
            ((0, ()), (0, [5]), (0, [5, 1]), (1, ())),  # a row for each draft token
            [0, 0, 0, 1],
            [0, 1],
            [0, 1, 2, 0],
            [3, 5, 1, 4],
            [2, 3, 4, 0],
            [5, 1],
        ),
        (((1, ()), (1, ()), (1, [5])), [0, 0, 0], [0, 0], [0, 1, 0], [4, 5, 4], [0, 1, 0], [2, 1]),  # a row twice
        ((2,), [0], [0], [0], [0], [-1], [0]),  # a history without any id
    ],
)
def test_the_context_of_a_call(
    rows: Any,
    expanded: list[int],
    indices: list[int],
    positions: list[int],
    input_ids: list[int],
    pos: list[int],
    bounds: list[int],
) -> None:
    cls = recording_class()
    requests = Requests(cls)
    requests.add([1], [2, 3])
    requests.add([4])
    requests.add()
    requests.call(*rows)
    assert fields(cls.contexts[0]) == {
        "expanded_idx_mapping": expanded,
        "idx_mapping": indices,
        "idx_mapping_np": indices,
        "expanded_local_pos": positions,
        "input_ids": input_ids,
        "pos": pos,
        "seq_lens_upper_bound_np": bounds,
    }


def test_slots_stay_and_buffers_hold_no_drafts() -> None:
    cls = recording_class()
    requests = Requests(cls)
    requests.add([1], [2, 3])
    requests.add([4])
    requests.call((1, ()), (0, ()), (0, [5]))
    requests.call(0, 1)
    assert fields(cls.contexts[1])["idx_mapping"] == [1, 0]
    assert [call for call in cls.calls if call[0] == "add"] == [("add", 0), ("add", 1)]
    states = requests.dialect.processor.states
    assert states.total_len.gpu[:2].tolist() == [1, 3]
    assert states.all_token_ids.gpu[1, :4].tolist() == [1, 2, 3, 0]
    dtypes = {name: value.dtype for name, value in vars(cls.contexts[0]).items()}
    assert dtypes == {
        **dict.fromkeys(("idx_mapping", "expanded_idx_mapping", "pos"), torch.int64),
        **dict.fromkeys(("expanded_local_pos", "input_ids"), torch.int32),
        "idx_mapping_np": np.intp,
        "seq_lens_upper_bound_np": np.int32,
    }


class AddsPlace(RecordsCalls):
    """Adds 100 for each row before this one, to a new tensor."""

    def apply(self, logits: torch.Tensor, ctx: LogitsContext) -> torch.Tensor:
        super().apply(logits, ctx)
        return logits + 100 * torch.arange(len(logits))[:, None]


def test_unordered_and_missing_rows() -> None:
    requests = Requests(AddsPlace)
    requests.add([1])
    requests.add([2])
    result = requests.call((0, [3, 4]), (1, [5]), (0, ()), (1, ()))
    context = AddsPlace.contexts[-1]
    assert context.expanded_idx_mapping.tolist() == [0, 0, 0, 1, 1]
    assert context.expanded_local_pos.tolist() == [0, 1, 2, 0, 1]
    assert context.input_ids.tolist() == [1, 3, 4, 2, 5]
    plain = torch.arange(float(4 * VOCAB)).view(4, VOCAB)
    assert torch.equal(result, plain + 100 * torch.tensor([[2.0], [4.0], [0.0], [3.0]]))


def test_rows_that_are_not_contiguous() -> None:
    class Flat(RecordsCalls):
        def apply(self, logits: torch.Tensor, ctx: LogitsContext) -> torch.Tensor:
            logits.view(-1).add_(1)
            return logits

    requests = Requests(Flat)
    requests.add([1])
    wide = torch.zeros(1, 2 * VOCAB)
    result = requests.dialect.process(requests.states * 2, wide.view(VOCAB, 2).T)
    assert result.tolist() == [[1.0] * VOCAB] * 2


def test_a_minimal_class_without_base() -> None:
    class Plain:
        def __init__(self, vllm_config: Any, req_states: Any, amount: float = 1.0) -> None:
            assert vllm_config.speculative_config is None
            self.amount = amount

        def add_request(self, req_idx: int, sampling_params: Any) -> None:
            pass

        def apply(self, logits: torch.Tensor, ctx: LogitsContext) -> torch.Tensor:
            return logits + self.amount

    plain = torch.arange(float(VOCAB)).view(1, VOCAB)
    for processor, amount in ((Plain, 1.0), (partial(Plain, amount=2.0), 2.0)):
        requests = Requests(processor)
        requests.add([1])
        assert torch.equal(requests.call(0), plain + amount)


# Declined requests, and other dtypes


def test_rows_of_a_declined_request_are_passed_along_with_others() -> None:
    cls = recording_class()
    requests = Requests(cls)
    requests.add([1], say=False)
    requests.add([2])
    requests.call(0, 1)
    assert cls.contexts[0].idx_mapping.tolist() == [0, 1]
    logits = requests.call(0)
    assert len(cls.contexts) == 1
    assert cls.calls[-2:] == ["apply", "flush"]
    assert logits.tolist() == [[0, 1, 2, 3, 4, 5]]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_processors_get_float32_logits(dtype: torch.dtype, admission: Any) -> None:
    from logitport_session.steps.grouping import Row, Rows
    from logitport_session.steps.outcome import StepOutcome
    from logitport_session.steps.step import run
    from logitport_session.steps.step_time import StepTime

    class Tenth(RecordsCalls):
        def apply(self, logits: torch.Tensor, ctx: LogitsContext) -> torch.Tensor:
            assert logits.dtype == torch.float32
            logits[torch.from_numpy(self.changed)[ctx.expanded_idx_mapping]] += 0.1
            return logits

        def add_request(self, req_idx: int, sampling_params: Any) -> bool:
            self.changed = getattr(self, "changed", np.zeros(self.states.max_num_reqs, bool))
            self.changed[req_idx] = "change" in (sampling_params.extra_args or {})
            return bool(self.changed[req_idx])

    admit = admission(VOCAB)
    others, declines, changes = admit(), admit((Tenth, {})), admit((Tenth, {"change": 1}))
    logits = torch.randn(3, VOCAB).to(dtype)
    before = logits.clone()
    outcome = StepOutcome()
    run(Rows([Row(0, others), Row(1, declines), Row(2, changes)]), {}, VOCAB, logits, outcome, StepTime(60.0))
    assert not outcome.failures
    assert torch.equal(logits[:2].view(torch.int16), before[:2].view(torch.int16))
    assert torch.equal(logits[2], (before[2].float() + 0.1).to(dtype))


def test_the_buffers_hold_the_histories() -> None:
    cls = recording_class()
    requests = Requests(cls)
    requests.add([1, 2], [3])
    requests.call(0)
    states = requests.dialect.processor.states
    lengths = {name: getattr(states, name).gpu[0].item() for name in ("prompt_len", "prefill_len", "total_len")}
    assert lengths == {"prompt_len": 2, "prefill_len": 3, "total_len": 3}
    requests.histories[0].extend([4, 5])
    requests.call(0)
    assert states.all_token_ids.gpu[0, :6].tolist() == [1, 2, 3, 4, 5, 0]
    assert (states.total_len.gpu[0], states.prefill_len.np[0]) == (5, 3)
    assert cls.calls == ["made", ("add", 0), "flush", "apply", "flush", "apply"]


def test_a_history_that_was_cut_back_is_added_again_and_one_with_rejected_drafts_is_not() -> None:
    cls = recording_class()
    requests = Requests(cls)
    state = requests.add([1], [2, 3])
    requests.call(0)
    requests.histories[0].append(4)
    requests.histories[0].rewind(3)
    requests.dialect.rewind(state)
    requests.call(0)
    assert cls.calls.count(("add", 0)) == 1
    requests.histories[0].rewind(2)
    requests.dialect.rewind(state)
    requests.histories[0].append(5)
    requests.call(0)
    states, slot = requests.dialect.processor.states, state.seat.slot
    assert [call for call in cls.calls if call[0] == "add"] == [("add", 0), ("add", slot)]
    assert states.all_token_ids.gpu[slot, :3].tolist() == [1, 2, 5]
    assert (states.prefill_len.np[slot], states.total_len.gpu[slot]) == (3, 3)


@pytest.mark.slow
def test_ten_thousand_requests_of_a_worker_through_eight_slots() -> None:
    cls = recording_class()
    loaded = WorkerProcessor(make_dialect(cls, "its name", shipped=True))
    for number in range(1, 10_001):
        history = History([1], [])
        loaded.start(number, RequestContext("r", history, {}, VOCAB, max_requests=8), {})
        if number > 8:
            loaded.drop(number - 8)
        if number % 4 == 0:
            last = range(max(1, number - 7), number + 1)
            loaded.update(last, [0] * len(last), [], [])
            loaded.dialect.process(loaded.states(range(len(last))), torch.zeros(len(last), VOCAB))
    assert cls.calls.count("made") == 1
    assert {call[1] for call in cls.calls if call[0] == "add"} == set(range(8))
    assert len(cls.contexts) == 2500


def test_the_initial_number_of_slots_is_limited() -> None:
    cls = recording_class()
    for most, slots in ((8, 8), (1024, 256)):
        requests = Requests(cls, {"max_requests": most})
        requests.add([1])
        assert requests.dialect.processor.states.max_num_reqs == slots


def test_more_requests_than_slots() -> None:
    cls = recording_class()
    requests = Requests(cls, {"max_requests": 2})
    for number in range(5):
        requests.add([number])
        requests.call(number)
    requests.call(*range(5))
    assert cls.calls.count("made") == 3
    assert requests.dialect.processor.states.max_num_reqs == 8
    assert fields(cls.contexts[-1])["input_ids"] == [0, 1, 2, 3, 4]


def test_a_history_that_is_longer_than_a_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(v2, "_INITIAL_LENGTH", 4)
    cls = recording_class()
    requests = Requests(cls)
    requests.add([1, 2], [3])
    requests.add([4])
    requests.call(0, 1)
    requests.histories[0].extend([4] * 6)
    requests.call(0)
    requests.call(1)
    assert cls.calls.count("made") == 2
    processor = requests.dialect.processor
    assert processor.states.all_token_ids.gpu.shape[1] == processor.config.model_config.max_model_len == 16
    assert processor.states.total_len.gpu[:2].tolist() == [9, 1]


def test_only_the_request_that_cannot_be_added_fails() -> None:
    cls = recording_class()
    requests = Requests(cls, {"max_requests": 2})
    requests.add([1], refuse=1)
    requests.add([2])
    for _ in range(3):  # its slot is free again
        logits = requests.call((0, ()), (1, ()), (0, [3]), (1, [4]))
        assert {place: str(error) for place, error in requests.dialect.failed.items()} == {0: "refuse", 2: "refuse"}
    assert cls.contexts[-1].input_ids.tolist() == [2, 4]
    assert logits.tolist() == torch.arange(float(4 * VOCAB)).view(4, VOCAB).tolist()
    assert cls.calls.count("made") == 1
    requests.call(1)
    assert requests.dialect.failed == {}


def test_no_request_can_be_added() -> None:
    cls = recording_class()
    requests = Requests(cls)
    requests.add([1], refuse=1)
    requests.call(0)
    assert list(requests.dialect.failed) == [0]
    assert cls.contexts == []


class Fails(RecordsCalls):
    """Runs an action once, which may raise or return an invalid result."""

    then: ClassVar[list[Any]] = []

    def apply(self, logits: torch.Tensor, ctx: LogitsContext) -> torch.Tensor:
        super().apply(logits, ctx)
        do, self.then[:] = list(self.then), []
        return do[0](logits) if do else logits


def test_an_instance_that_raised_is_replaced() -> None:
    def leave(logits: torch.Tensor) -> torch.Tensor:
        raise SystemExit

    requests = Requests(Fails)
    requests.add([1])
    requests.add([2])
    Fails.then.append(leave)
    with pytest.raises(SystemExit):
        requests.call(0, 1)
    requests.call(1)
    Fails.then.append(lambda logits: logits[1:])
    with pytest.raises(ProcessorFailed, match="shape"):
        requests.call(0, 1)
    del Fails.calls[:]
    requests.call(1, 0)
    assert Fails.calls == ["made", ("add", 0), ("add", 1), "flush", "apply"]
    assert Fails.contexts[-1].input_ids.tolist() == [2, 1]


def test_an_instance_is_refused() -> None:
    with pytest.raises(PayloadError, match=r"an instance of .*Recording was shipped, .*ship the class"):
        make_dialect(recording_class()(None, None), "its name", shipped=True)
