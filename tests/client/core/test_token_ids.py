"""Token ids as lists, numpy arrays and torch tensors, in all places where callers pass them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from logitport import Client, History, InvalidArgument, Request, RowEdits
from logitport.core.history import int32_ids, listed_ids
from logitport.session import Handle
from logitport.session.steps.step_frame import listed_by_handle
from logitport_testing import ToyModel, simulate

if TYPE_CHECKING:
    from collections.abc import Callable


IDS = [5, 0, 3]


class OnDevice:
    """Takes the place of a tensor in the memory of a GPU, which numpy cannot read."""

    def __init__(self, ids: list[int]) -> None:
        self._ids = torch.tensor(ids)
        self.dtype = self._ids.dtype
        self.copies = 0

    def __len__(self) -> int:
        return len(self._ids)

    def detach(self) -> OnDevice:
        return self

    def cpu(self) -> torch.Tensor:
        self.copies += 1
        return self._ids

    def __array__(self, *_: object) -> Any:
        raise TypeError("can't convert cuda:0 device type tensor to numpy")

    def __iter__(self) -> Any:
        raise AssertionError("reads one id at a time")


OnDevice.__module__ = "torch"
KINDS: dict[str, Callable[[list[int]], Any]] = {
    "list": list,
    "tuple": tuple,
    "int64 array": lambda ids: np.array(ids, np.int64),
    "uint8 array": lambda ids: np.array(ids, np.uint8),
    "int32 array that is not contiguous": lambda ids: np.repeat(np.array(ids, np.int32), 2)[::2],
    "int64 tensor": torch.tensor,
    "int32 tensor": lambda ids: torch.tensor(ids, dtype=torch.int32),
    "tensor that is not contiguous": lambda ids: torch.tensor(ids).repeat_interleave(2)[::2],
    "tensor on a device": OnDevice,
    "tensor on a GPU": lambda ids: torch.tensor(ids, device="cuda"),
}
_WITH_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
kinds = pytest.mark.parametrize(
    "kind",
    [
        pytest.param(make, id=name, marks=[pytest.mark.cuda, _WITH_GPU] if "GPU" in name else [])
        for name, make in KINDS.items()
    ],
)


@kinds
def test_histories_and_requests(kind: Callable[[list[int]], Any]) -> None:
    for history in (History(kind(IDS), kind([1])), Request(kind(IDS), kind([1])).history()):
        assert history.token_ids.tolist() == [5, 0, 3, 1]
        assert history.prompt_length == 3
    assert History(kind([]), kind([])).length == 0


@kinds
def test_edits(kind: Callable[[list[int]], Any]) -> None:
    edits = RowEdits()
    edits.deny(kind(IDS))
    edits.allow(kind(IDS))
    edits.bias(kind(IDS), kind([1, 2, 3]))
    assert [ids.tolist() for _, ids, _ in edits] == [IDS] * 3


@kinds
def test_parameters_of_a_request(kind: Callable[[list[int]], Any]) -> None:
    request = Request(processors=[("disallowed_tokens", {"token_ids": kind(IDS)})])
    assert request.to_proto().processors[0].params == b'{"token_ids":[5,0,3]}'


@kinds
@pytest.mark.parametrize("transport", ["grpc", "local"])
def test_steps_of_a_session(client: Client, kind: Callable[[list[int]], Any], transport: Any) -> None:
    with client.session(vocab_size=8, eos_token_ids=kind([7]), max_draft_tokens=2, transport=transport) as session:
        chain = [("no_repeat_ngram", {"ngram_size": 2}), ("min_tokens", {"min_tokens": 9})]
        handles = [session.add(Request(kind([1, 2]), kind([1]), processors=chain)) for _ in range(2)]
        session.step({handles[0]: kind([]), handles[1]: []}).apply(np.zeros((2, 8), np.float32))
        logits = np.zeros((4, 8), np.float32)
        session.step({handles[0]: kind([2]), handles[1]: [2]}, drafts={handles[0]: kind([3, 1])}).apply(logits)
        assert [np.isinf(row).nonzero()[0].tolist() for row in logits] == [[1, 7], [7], [2, 7], [1, 7]]
        assert [handle.history.token_ids.tolist() for handle in handles] == [[1, 2, 1, 2]] * 2
        session.step({handles[0]: kind([3]), handles[1]: [3]}).apply(np.zeros((2, 8), np.float32))
        assert session.resyncs == 0


@pytest.mark.parametrize(
    ("given", "what"),
    [
        (torch.tensor([[1, 2]]), r"int64\[1, 2\]; pass the row \[0\]"),
        (np.array([[1], [2]]), r"int64\[2, 1\]$"),
        (torch.tensor(3), r"int64\[\]; pass a list of one id$"),
        (np.int64(3), r"int64\[\]; pass a list of one id$"),
        (torch.tensor([1.0]), r"float32\[1\]$"),
        (torch.tensor([1.0], dtype=torch.bfloat16), r"float32\[1\]$"),
        (np.array(["a"]), r"<U1\[1\]$"),
        (torch.tensor([True, False]), r"bool\[2\]$"),
        (np.array([True]), r"bool\[1\]$"),
    ],
)
def test_tensors_and_arrays_that_hold_no_ids(client: Client, given: Any, what: str) -> None:
    message = f"must be integers of 32 bits, \\[n\\], not {what}"
    for convert in (int32_ids, listed_ids, History):
        with pytest.raises(InvalidArgument, match=f"^token ids {message}"):
            convert(given)
    with pytest.raises(InvalidArgument, match=f"^request 'r': prompt_token_ids {message}"):
        Request(given, request_id="r").to_proto()
    with pytest.raises(InvalidArgument, match=f"^prompt {message}"):
        simulate([], ToyModel(16), given, 1)
    with client.session(vocab_size=8) as session:
        handle = session.add(Request([1]))
        with pytest.raises(InvalidArgument, match=f"^new_token_ids of <Handle.*> {message}"):
            session.step({handle: given})
        with pytest.raises(InvalidArgument, match=f"^drafts of <Handle.*> {message}"):
            session.step({handle: []}, drafts={handle: given})
        session.step({handle: [2]}).apply(np.zeros((1, 8), np.float32))  # nothing was sent before
        assert handle.history.token_ids.tolist() == [1, 2]


def test_a_tensor_on_a_device_is_copied_once() -> None:
    ids = OnDevice(IDS)
    assert listed_ids(ids) == IDS  # type: ignore[arg-type]
    assert ids.copies == 1


def test_lists_and_tuples_are_not_copied() -> None:
    handle = Handle(0, 1, Request())
    step = {handle: [1, 2]}
    assert listed_by_handle(step, "new_token_ids") is step
    assert listed_ids(step[handle]) is step[handle]
