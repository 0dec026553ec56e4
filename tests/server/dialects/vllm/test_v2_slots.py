"""The dialect of vLLM's revised model runner: slots and their buffers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from logitport import History
from logitport_server.worker.hosted import HostedProcessor
from logitport_session.dialects import RequestContext, make_dialect
from logitport_session.dialects.vllm import v2
from tests.server.dialects.vllm.v2_requests import VOCAB, Requests, fields, recording_class

if TYPE_CHECKING:
    import pytest


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


def test_ten_thousand_requests_through_eight_slots() -> None:
    cls = recording_class()
    requests = Requests(cls, {"max_requests": 8})
    for number in range(10_000):
        requests.add([number % VOCAB])
        if len(requests.states) == 8:
            requests.call(*range(8))
            del requests.states[::2], requests.histories[::2]
    assert cls.calls.count("made") == 1
    assert {call[1] for call in cls.calls if call[0] == "add"} == set(range(8))
    assert len(requests.dialect.processor.states.total_len.gpu) == 8


def test_ten_thousand_requests_through_a_worker() -> None:
    cls = recording_class()
    hosted = HostedProcessor(make_dialect(cls, "its name", shipped=True))
    for number in range(1, 10_001):
        history = History([1], [])
        hosted.start(number, RequestContext("r", history, {}, VOCAB, max_requests=8), {})
        if number > 8:
            hosted.drop(number - 8)
        if number % 4 == 0:
            last = range(max(1, number - 7), number + 1)
            hosted.update(last, [0] * len(last), [], [])
            hosted.dialect.process(hosted.states(range(len(last))), torch.zeros(len(last), VOCAB))
    assert cls.calls.count("made") == 1
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
