"""The dialect of vLLM's revised model runner: the effect of errors, and rejected processors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import pytest
import torch

from logitport import InvalidArgument, PayloadError, ProcessorFailed
from logitport_session.dialects import make_dialect
from tests.server.dialects.vllm.v2_requests import VOCAB, RecordsCalls, Requests, recording_class

if TYPE_CHECKING:
    from logitport_session.stubs.vllm.v1.worker.gpu.sample.logits_processor import LogitsContext


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


def test_a_constructor_that_raises() -> None:
    class Refuses(RecordsCalls):
        def __init__(self, vllm_config: Any, req_states: Any) -> None:
            raise ValueError("not with me")

    with pytest.raises(PayloadError, match=r"creating a .*Refuses raised ValueError: not with me"):
        Requests(Refuses).add([1])


def test_a_class_without_a_constructor_that_fits() -> None:
    class Bare:
        def add_request(self, req_idx: int, sampling_params: Any) -> bool:
            return True

        def apply(self, logits: torch.Tensor, ctx: Any) -> torch.Tensor:
            return logits

    with pytest.raises(
        PayloadError, match=r"creating a .*Bare would fail: .*define __init__\(self, vllm_config, req_st"
    ):
        make_dialect(Bare, "its name", shipped=True)


def test_an_instance_is_refused() -> None:
    with pytest.raises(PayloadError, match=r"an instance of .*Recording was shipped, .*ship the class"):
        make_dialect(recording_class()(None, None), "its name", shipped=True)


def test_parameters_that_validate_params_refuses() -> None:
    class Checks(RecordsCalls):
        @classmethod
        def validate_params(cls, sampling_params: Any) -> None:
            if sampling_params.extra_args["n"] < 0:
                raise ValueError("n is negative")

    dialect = make_dialect(Checks, "its name", shipped=True)
    dialect.validate({"n": 1}, {})
    with pytest.raises(InvalidArgument, match="n is negative"):
        dialect.validate({"n": -1}, {})
