"""vLLM's batch dialect: what is refused, and what an error costs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from logitport import InvalidParams, LoadFailed, ProcessorFailed
from logitport_server.dialects import make_dialect
from logitport_server.stubs.vllm.exceptions import VLLMValidationError
from logitport_server.stubs.vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor
from tests.server.dialects.vllm.v1_requests import Counts, Logs, Told, speaks, step

if TYPE_CHECKING:
    import torch


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
        Told(make_dialect(Abstract, "its name", shipped=True))


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
