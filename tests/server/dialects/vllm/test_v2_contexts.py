"""The dialect of vLLM's revised model runner: the rows of a call, and their context."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from tests.server.dialects.vllm.v2_requests import VOCAB, RecordsCalls, Requests, fields, recording_class

if TYPE_CHECKING:
    from logitport_session.stubs.vllm.v1.worker.gpu.sample.logits_processor import LogitsContext


def test_one_row_per_request() -> None:
    cls = recording_class()
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
    cls = recording_class()
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


def test_a_request_that_has_a_row_twice() -> None:
    cls = recording_class()
    requests = Requests(cls)
    requests.add([1])
    requests.call((0, ()), (0, ()), (0, [5]))
    context = cls.contexts[0]
    assert context.expanded_idx_mapping.tolist() == [0, 0, 0]
    assert context.idx_mapping.tolist() == [0, 0]
    assert context.expanded_local_pos.tolist() == [0, 0, 1]
    assert cls.calls.count(("add", 0)) == 1


def test_a_history_without_any_id() -> None:
    cls = recording_class()
    requests = Requests(cls)
    requests.add()
    requests.call(0)
    assert fields(cls.contexts[0])["pos"] == [-1]
    assert fields(cls.contexts[0])["seq_lens_upper_bound_np"] == [0]
    assert fields(cls.contexts[0])["input_ids"] == [0]


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
