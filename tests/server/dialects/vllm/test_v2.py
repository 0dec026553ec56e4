"""The dialect of vLLM's revised model runner: slots, contexts, and what happens to an instance."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pytest
import torch

from logitport import History, InvalidParams, LoadFailed, ProcessorFailed
from logitport_server.dialects import RequestContext, speak
from logitport_server.dialects.vllm import v2
from logitport_server.worker.hosted import Hosted
from logitport_server.worker.standins.vllm.v1.worker.gpu.sample.logits_processor import LogitsContext, LogitsProcessor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from logitport_server.dialects import Dialect

VOCAB = 6


class Notes(LogitsProcessor):
    """Notes what it is told, and whichever instance of it is told."""

    told: ClassVar[list[Any]]
    contexts: ClassVar[list[LogitsContext]]

    def __init_subclass__(cls) -> None:
        cls.told, cls.contexts = [], []

    def __init__(self, vllm_config: Any, req_states: Any) -> None:
        self.config, self.states = vllm_config, req_states
        self.told.append("made")

    def add_request(self, req_idx: int, sampling_params: Any) -> Any:
        asked = sampling_params.extra_args or {}
        if "refuse" in asked:
            raise ValueError("refuse")
        self.told.append(("add", req_idx))
        return asked.get("say", True)

    def apply_staged_writes(self) -> None:
        self.told.append("flush")

    def apply(self, logits: torch.Tensor, ctx: LogitsContext) -> torch.Tensor:
        self.told.append("apply")
        self.contexts.append(ctx)
        return logits


def notes() -> type[Notes]:
    class Told(Notes):
        pass

    return Told


class Requests:
    """Requests of one dialect.

    Attributes:
        dialect: of the class.
        states: of the requests, in the order in which they came.
    """

    def __init__(self, processor: Any, context: dict[str, Any] | None = None) -> None:
        self.dialect: Dialect = speak(processor, "its name", shipped=True)
        self.states: list[Any] = []
        self.histories: list[History] = []
        self._context = context or {}

    def add(self, prompt: Sequence[int] = (), output: Sequence[int] = (), **params: Any) -> Any:
        self.histories.append(History(prompt, output))
        context = RequestContext("r", self.histories[-1], {}, VOCAB, **self._context)
        self.states.append(self.dialect.start(context, params))
        return self.states[-1]

    def call(self, *rows: tuple[int, Sequence[int]] | int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """One call; each row is a request, by its number, and the draft tokens before it."""
        placed = [row if isinstance(row, tuple) else (row, ()) for row in rows]
        if any(drafts for _, drafts in placed):
            self.dialect.drafts = [drafts for _, drafts in placed]
        logits = torch.arange(float(len(rows) * VOCAB)).view(len(rows), VOCAB).to(dtype)
        result = self.dialect.process([self.states[number] for number, _ in placed], logits)
        self.dialect.drafts = ()
        return result


def fields(context: LogitsContext) -> dict[str, list[int]]:
    return {name: value.tolist() for name, value in vars(context).items()}


# Contexts


def test_a_row_each() -> None:
    cls = notes()
    requests = Requests(cls)
    requests.add([1], [2, 3])
    requests.add([4])
    requests.call(1, 0)
    context = cls.contexts[0]
    assert fields(context) == {
        "expanded_idx_mapping": [0, 1],
        "idx_mapping": [0, 1],
        "idx_mapping_np": [0, 1],
        "expanded_local_pos": [0, 0],
        "input_ids": [4, 3],
        "pos": [0, 2],
        "seq_lens_upper_bound_np": [1, 3],
    }
    requests.call(0, 1)
    assert fields(cls.contexts[1])["idx_mapping"] == [1, 0]
    assert (context.idx_mapping.dtype, context.expanded_idx_mapping.dtype) == (torch.int64, torch.int64)
    assert (context.expanded_local_pos.dtype, context.input_ids.dtype) == (torch.int32, torch.int32)
    assert context.pos.dtype == torch.int64
    assert (context.idx_mapping_np.dtype, context.seq_lens_upper_bound_np.dtype) == (np.intp, np.int32)


def test_a_row_for_each_draft_token() -> None:
    cls = notes()
    requests = Requests(cls)
    requests.add([1], [2, 3])
    requests.add([4])
    requests.call((0, ()), (0, [5]), (0, [5, 1]), (1, ()))
    assert fields(cls.contexts[0]) == {
        "expanded_idx_mapping": [0, 0, 0, 1],
        "idx_mapping": [0, 1],
        "idx_mapping_np": [0, 1],
        "expanded_local_pos": [0, 1, 2, 0],
        "input_ids": [3, 5, 1, 4],
        "pos": [2, 3, 4, 0],
        "seq_lens_upper_bound_np": [5, 1],
    }
    states = requests.dialect.processor.states
    assert states.total_len.gpu[:2].tolist() == [3, 1]  # draft tokens are in input_ids alone
    assert states.all_token_ids.gpu[0, :4].tolist() == [1, 2, 3, 0]


class AddsPlace(Notes):
    """Adds 100 for each row before this one, to a new tensor."""

    def apply(self, logits: torch.Tensor, ctx: LogitsContext) -> torch.Tensor:
        super().apply(logits, ctx)
        return logits + 100 * torch.arange(len(logits))[:, None]


def test_rows_that_are_mixed_up_and_rows_that_are_missing() -> None:
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


def test_a_request_that_has_a_row_twice() -> None:
    cls = notes()
    requests = Requests(cls)
    requests.add([1])
    requests.call((0, ()), (0, ()), (0, [5]))
    context = cls.contexts[0]
    assert context.expanded_idx_mapping.tolist() == [0, 0, 0]
    assert context.idx_mapping.tolist() == [0, 0]
    assert context.expanded_local_pos.tolist() == [0, 0, 1]
    assert cls.told.count(("add", 0)) == 1


def test_a_history_without_any_id() -> None:
    cls = notes()
    requests = Requests(cls)
    requests.add()
    requests.call(0)
    assert fields(cls.contexts[0])["pos"] == [-1]
    assert fields(cls.contexts[0])["seq_lens_upper_bound_np"] == [0]
    assert fields(cls.contexts[0])["input_ids"] == [0]


def test_rows_that_do_not_lie_together() -> None:
    class Flat(Notes):
        def apply(self, logits: torch.Tensor, ctx: LogitsContext) -> torch.Tensor:
            logits.view(-1).add_(1)
            return logits

    requests = Requests(Flat)
    requests.add([1])
    wide = torch.zeros(1, 2 * VOCAB)
    result = requests.dialect.process(requests.states * 2, wide.view(VOCAB, 2).T)
    assert result.tolist() == [[1.0] * VOCAB] * 2


# Slots and their buffers


def test_what_the_buffers_hold() -> None:
    cls = notes()
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
    assert cls.told == ["made", ("add", 0), "flush", "apply", "flush", "apply"]


def test_a_history_that_was_cut_back_is_added_anew_and_one_that_merely_had_drafts_is_not() -> None:
    cls = notes()
    requests = Requests(cls)
    state = requests.add([1], [2, 3])
    requests.call(0)
    requests.histories[0].append(4)
    requests.histories[0].rewind(3)
    requests.dialect.rewind(state)
    requests.call(0)
    assert cls.told.count(("add", 0)) == 1
    requests.histories[0].rewind(2)
    requests.dialect.rewind(state)
    requests.histories[0].append(5)
    requests.call(0)
    states, slot = requests.dialect.processor.states, state.seat.slot
    assert [told for told in cls.told if told[0] == "add"] == [("add", 0), ("add", slot)]
    assert states.all_token_ids.gpu[slot, :3].tolist() == [1, 2, 5]
    assert (states.prefill_len.np[slot], states.total_len.gpu[slot]) == (3, 3)


def test_ten_thousand_requests_through_eight_slots() -> None:
    cls = notes()
    requests = Requests(cls, {"max_requests": 8})
    for number in range(10_000):
        requests.add([number % VOCAB])
        if len(requests.states) == 8:
            requests.call(*range(8))
            del requests.states[::2], requests.histories[::2]
    assert cls.told.count("made") == 1
    assert {told[1] for told in cls.told if told[0] == "add"} == set(range(8))
    assert len(requests.dialect.processor.states.total_len.gpu) == 8


def test_a_worker_that_is_told_of_ten_thousand_requests() -> None:
    cls = notes()
    hosted = Hosted(speak(cls, "its name", shipped=True))
    for number in range(1, 10_001):
        history = History([1], [])
        hosted.start(number, RequestContext("r", history, {}, VOCAB, max_requests=8), {})
        if number > 8:
            hosted.forget(number - 8)
        if number % 4 == 0:
            last = range(max(1, number - 7), number + 1)
            hosted.dialect.process(hosted.states(last, range(len(last))), torch.zeros(len(last), VOCAB))
    assert cls.told.count("made") == 1
    assert len(cls.contexts) == 2500


def test_an_engine_that_may_have_very_many_requests_begins_with_fewer_slots() -> None:
    cls = notes()
    for most, slots in ((8, 8), (1024, 256)):
        requests = Requests(cls, {"max_requests": most})
        requests.add([1])
        assert requests.dialect.processor.states.max_num_reqs == slots


def test_more_requests_than_slots() -> None:
    cls = notes()
    requests = Requests(cls, {"max_requests": 2})
    for number in range(5):
        requests.add([number])
        requests.call(number)
    requests.call(*range(5))
    assert cls.told.count("made") == 3
    assert requests.dialect.processor.states.max_num_reqs == 8
    assert fields(cls.contexts[-1])["input_ids"] == [0, 1, 2, 3, 4]


def test_a_history_that_is_longer_than_a_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(v2, "_LONGEST", 4)
    cls = notes()
    requests = Requests(cls)
    requests.add([1, 2], [3])
    requests.add([4])
    requests.call(0, 1)
    requests.histories[0].extend([4] * 6)
    requests.call(0)
    requests.call(1)
    assert cls.told.count("made") == 2
    processor = requests.dialect.processor
    assert processor.states.all_token_ids.gpu.shape[1] == processor.config.model_config.max_model_len == 16
    assert processor.states.total_len.gpu[:2].tolist() == [9, 1]


# What is declined, and other dtypes


def test_rows_of_a_declined_request_are_there_if_others_are() -> None:
    cls = notes()
    requests = Requests(cls)
    requests.add([1], say=False)
    requests.add([2])
    requests.call(0, 1)
    assert cls.contexts[0].idx_mapping.tolist() == [0, 1]
    logits = requests.call(0)
    assert len(cls.contexts) == 1
    assert cls.told[-2:] == ["apply", "flush"]
    assert logits.tolist() == [[0, 1, 2, 3, 4, 5]]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_logits_are_float32_there(dtype: torch.dtype, admission: Any) -> None:
    from logitport_server.grouping import Row, Rows
    from logitport_server.step import Outcome, run

    class Tenth(Notes):
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
    outcome = Outcome()
    run(Rows([Row(0, others), Row(1, declines), Row(2, changes)]), {}, VOCAB, logits, outcome)
    assert not outcome.failures
    assert torch.equal(logits[:2].view(torch.int16), before[:2].view(torch.int16))
    assert torch.equal(logits[2], (before[2].float() + 0.1).to(dtype))


# What is not as it should be


def test_a_request_that_cannot_be_added_fails_alone() -> None:
    cls = notes()
    requests = Requests(cls, {"max_requests": 2})
    requests.add([1], refuse=1)
    requests.add([2])
    for _ in range(3):  # its slot is free again
        logits = requests.call((0, ()), (1, ()), (0, [3]), (1, [4]))
        assert {place: str(error) for place, error in requests.dialect.failed.items()} == {0: "refuse", 2: "refuse"}
    assert cls.contexts[-1].input_ids.tolist() == [2, 4]
    assert logits.tolist() == torch.arange(float(4 * VOCAB)).view(4, VOCAB).tolist()
    assert cls.told.count("made") == 1
    requests.call(1)
    assert requests.dialect.failed == {}


def test_nobody_can_be_added() -> None:
    cls = notes()
    requests = Requests(cls)
    requests.add([1], refuse=1)
    requests.call(0)
    assert list(requests.dialect.failed) == [0]
    assert cls.contexts == []


class Fails(Notes):
    """Raises, or returns what is no answer, once."""

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
    del Fails.told[:]
    requests.call(1, 0)
    assert Fails.told == ["made", ("add", 0), ("add", 1), "flush", "apply"]
    assert Fails.contexts[-1].input_ids.tolist() == [2, 1]


def test_what_cannot_be_made() -> None:
    class Refuses(Notes):
        def __init__(self, vllm_config: Any, req_states: Any) -> None:
            raise ValueError("not with me")

    with pytest.raises(LoadFailed, match=r"creating a .*Refuses raised ValueError: not with me"):
        Requests(Refuses).add([1])


def test_an_instance_is_refused() -> None:
    with pytest.raises(LoadFailed, match=r"an instance of .*Told was shipped, .*ship the class"):
        speak(notes()(None, None), "its name", shipped=True)


def test_parameters_that_validate_params_refuses() -> None:
    class Checks(Notes):
        @classmethod
        def validate_params(cls, sampling_params: Any) -> None:
            if sampling_params.extra_args["n"] < 0:
                raise ValueError("n is negative")

    dialect = speak(Checks, "its name", shipped=True)
    dialect.validate({"n": 1}, {})
    with pytest.raises(InvalidParams, match="n is negative"):
        dialect.validate({"n": -1}, {})


# Other ways to write one


def test_a_class_of_no_base_with_the_least_that_is_needed() -> None:
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


class AsProposed:
    """The form in which it was first proposed."""

    told: ClassVar[list[Any]] = []

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        assert (device.type, is_pin_memory) == ("cpu", False)

    def is_argmax_invariant(self) -> bool:
        return True

    def add_request(self, index: int, params: Any, prompt_length: int) -> None:
        self.told.append(("add", index, prompt_length))

    def remove_request(self, index: int) -> None:
        self.told.append(("remove", index))

    def update_states(self, index_mapping: Any, token_ids: Any, seq_lens: Any) -> None:
        self.mapping = self.mapping if index_mapping is None else index_mapping
        seen = [token_ids[slot, : seq_lens[slot]].tolist() for slot in self.mapping]
        self.told.append((None if index_mapping is None else index_mapping.tolist(), seen))

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        return logits + 1


def test_the_form_that_was_first_proposed() -> None:
    requests = Requests(AsProposed)
    del AsProposed.told[:]
    requests.add([1, 2], [3])
    requests.add([4])
    requests.call(1, 0)
    assert requests.dialect.argmax_invariant
    requests.histories[0].append(5)
    requests.call(1, 0)
    requests.call(0)
    del requests.states[0]
    requests.add([6])
    requests.call(1, 0)
    assert AsProposed.told == [
        ("add", 0, 1),
        ("add", 1, 2),
        ([0, 1], [[4], [1, 2, 3]]),
        (None, [[4], [1, 2, 3, 5]]),
        ([1], [[1, 2, 3, 5]]),
        ("remove", 1),
        ("add", 1, 1),
        ([1, 0], [[6], [4]]),
    ]


def test_drafts_in_the_form_that_was_first_proposed(admission: Any) -> None:
    """A row is a request's, so each draft offset is a call; the next step starts over from what is left of them."""
    from logitport_server.grouping import Row, Rows
    from logitport_server.step import Outcome, run

    request = admission(VOCAB)((AsProposed, {}), prompt=[1])
    del AsProposed.told[:]
    for drafts in ([2, 3], []):
        rows = Rows(Row(at, request, at) for at in range(1 + len(drafts)))
        run(rows, {request: drafts} if drafts else {}, VOCAB, torch.zeros(len(rows), VOCAB), Outcome())
    assert AsProposed.told == [
        ("add", 0, 1),
        ([0], [[1]]),
        (None, [[1, 2]]),
        (None, [[1, 2, 3]]),
        ("remove", 0),
        ("add", 0, 1),
        (None, [[1]]),
    ]
