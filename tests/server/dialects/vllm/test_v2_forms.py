"""The dialect of vLLM's revised model runner: other ways to write a processor for it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from tests.server.dialects.vllm.v2_requests import VOCAB, Requests

if TYPE_CHECKING:
    from logitport_server.stubs.vllm.v1.worker.gpu.sample.logits_processor import LogitsContext


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


class AsProposed:
    """The form that was proposed first."""

    calls: ClassVar[list[Any]] = []

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        assert (device.type, is_pin_memory) == ("cpu", False)

    def is_argmax_invariant(self) -> bool:
        return True

    def add_request(self, index: int, params: Any, prompt_length: int) -> None:
        self.calls.append(("add", index, prompt_length))

    def remove_request(self, index: int) -> None:
        self.calls.append(("remove", index))

    def update_states(self, index_mapping: Any, token_ids: Any, seq_lens: Any) -> None:
        self.mapping = self.mapping if index_mapping is None else index_mapping
        seen = [token_ids[slot, : seq_lens[slot]].tolist() for slot in self.mapping]
        self.calls.append((None if index_mapping is None else index_mapping.tolist(), seen))

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        return logits + 1


def test_the_form_that_was_proposed_first() -> None:
    requests = Requests(AsProposed)
    del AsProposed.calls[:]
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
    assert AsProposed.calls == [
        ("add", 0, 1),
        ("add", 1, 2),
        ([0, 1], [[4], [1, 2, 3]]),
        (None, [[4], [1, 2, 3, 5]]),
        ([1], [[1, 2, 3, 5]]),
        ("remove", 1),
        ("add", 1, 1),
        ([1, 0], [[6], [4]]),
    ]


def test_drafts_in_the_form_that_was_proposed_first(admission: Any) -> None:
    """Each request has one row, so each draft offset is a call. The next step adds the request again."""
    from logitport_server.session.grouping import Row, Rows
    from logitport_server.session.outcome import StepOutcome
    from logitport_server.session.step import run
    from logitport_server.session.step_time import StepTime

    request = admission(VOCAB)((AsProposed, {}), prompt=[1])
    del AsProposed.calls[:]
    for drafts in ([2, 3], []):
        rows = Rows(Row(at, request, at) for at in range(1 + len(drafts)))
        run(
            rows,
            {request: drafts} if drafts else {},
            VOCAB,
            torch.zeros(len(rows), VOCAB),
            StepOutcome(),
            StepTime(60.0),
        )
    assert AsProposed.calls == [
        ("add", 0, 1),
        ([0], [[1]]),
        (None, [[1, 2]]),
        (None, [[1, 2, 3]]),
        ("remove", 0),
        ("add", 0, 1),
        (None, [[1]]),
    ]
