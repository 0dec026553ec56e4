"""vLLM's batch dialect: rejected processors and parameters, and the effect of errors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from logitport import InvalidArgument, PayloadError, ProcessorFailed
from logitport_session.dialects import make_dialect
from logitport_session.stubs.vllm.exceptions import VLLMValidationError
from logitport_session.stubs.vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor
from tests.server.dialects.vllm.v1_requests import Counts, DialectRequest, RecordsUpdates, shipped_dialect, step

if TYPE_CHECKING:
    import torch


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


def test_a_class_that_cannot_be_instantiated() -> None:
    class NeedsTokenizer(RecordsUpdates):
        def __init__(self, tokenizer: str) -> None:
            self.tokenizer = tokenizer

    with pytest.raises(PayloadError, match="vllm_config, device, is_pin_memory"):
        shipped_dialect(NeedsTokenizer)

    class Abstract(LogitsProcessor):
        pass

    with pytest.raises(PayloadError, match="abstract"):
        DialectRequest(make_dialect(Abstract, "its name", shipped=True))


def test_an_instance_that_raised_is_replaced() -> None:
    dialect = shipped_dialect(Counts)
    bad, good = DialectRequest(dialect, [1], by=13), DialectRequest(dialect, [2], by=2)
    for token_id in (3, 4, 5):
        bad.append(token_id)
        good.append(token_id)
    with pytest.raises(RuntimeError, match="thirteen"):
        step(dialect, good, bad)
    assert step(dialect, good)[0].tolist() == good.expected()
    assert len(Counts.made) == 2


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


def test_the_result_for_the_other_requests_is_checked() -> None:
    class KeepsOne(Counts):
        def apply(self, logits: torch.Tensor) -> torch.Tensor:
            return logits[:1] + 1

    dialect = shipped_dialect(KeepsOne)
    good, bad = [DialectRequest(dialect, [1], by=1) for _ in range(2)], DialectRequest(dialect, by="bomb")
    with pytest.raises(ProcessorFailed, match=r"returned a tensor of shape \[1, 8\]"):
        step(dialect, *good, bad)


def test_all_requests_that_cannot_be_added_fail() -> None:
    dialect = shipped_dialect(Counts)
    step(dialect, DialectRequest(dialect, by="bomb"), DialectRequest(dialect, by="bomb"))
    assert sorted(dialect.failed) == [0, 1]


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
