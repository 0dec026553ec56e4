"""The runner of `logitport_testing`: requests that come and go in one process, and its own errors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from logitport import (
    CustomLogitProcessor,
    EditProcessor,
    InvalidArgument,
    NotFound,
    ProcessorFailed,
    Request,
    RowEdits,
    StateLost,
)
from logitport_runner import open_runner
from logitport_testing.runner import RowStep

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

    from logitport_testing.runner import Batch, Where

VOCAB = 8
ZEROS = np.zeros((3, VOCAB), np.float32)


class DeniesLast(EditProcessor):
    def edit(self, request: Any, edits: Any) -> None:
        edits.deny(request.history.token_ids[-1:])


class CountsCalls(CustomLogitProcessor):
    def __call__(self, logits: torch.Tensor, custom_param_list: Any = None) -> torch.Tensor:
        for row, params in zip(logits, custom_param_list, strict=True):
            if params.get("fail"):
                raise RuntimeError("told to")
            params["calls"] = params.get("calls", 0) + 1
            row.add_(params["calls"])
        return logits


@pytest.fixture
def batch() -> Iterator[Batch]:
    with open_runner() as runner:
        yield runner.open(VOCAB)


def test_rows_with_and_without_logits_share_a_step(batch: Batch) -> None:
    chains: list[list[tuple[Any, dict[str, Any]]]] = [
        [(DeniesLast, {})],
        [("logit_bias", {"logit_bias": {"0": 1.0}}), (CountsCalls, {}), (DeniesLast, {})],
        [],
    ]
    infos = [batch.add(slot, Request([slot + 1], processors=chain)) for slot, chain in enumerate(chains)]
    assert [[(info.name, info.reads_logits) for info in chain] for chain in infos] == [
        [("DeniesLast", False)],
        [("logit_bias", False), ("CountsCalls", True), ("DeniesLast", False)],
        [],
    ]
    first, second, third = batch.step([RowStep(slot, 1) for slot in range(3)], ZEROS)
    inf = float("inf")
    assert first.logits.tolist() == [0, -inf, *[0] * 6]
    assert second.logits.tolist() == [2, 1, -inf, *[1] * 5]
    assert third.logits.tolist() == [0] * 8
    assert [place.logits[0] for place in second.places if place is not None] == [1, 2, 2]
    assert not ZEROS.any()


def test_a_history_that_is_cut_back(batch: Batch) -> None:
    batch.add(0, Request([1], processors=[(DeniesLast, {})]))
    for base_length, new_ids, denied in [(1, [2, 3], 3), (2, [4], 4), (3, [], 4), (2, [], 2)]:
        (result,) = batch.step([RowStep(0, base_length, new_ids)], ZEROS[:1])
        assert np.flatnonzero(np.isinf(result.logits)).tolist() == [denied]


def test_state_that_cannot_be_rebuilt(batch: Batch) -> None:
    batch.add(0, Request([1], processors=[(CountsCalls, {})]))
    batch.check_rebuildable(0)
    batch.step([RowStep(0, 1, [2])], ZEROS[:1])
    with pytest.raises(StateLost):
        batch.check_rebuildable(0)
    (result,) = batch.step([RowStep(0, 1)], ZEROS[:1])
    assert isinstance(result.error, StateLost)


def test_a_request_fails_with_those_that_share_its_call(batch: Batch) -> None:
    batch.add(0, Request([1], processors=[(CountsCalls, {})]))
    batch.add(1, Request([1], processors=[(CountsCalls, {"fail": True})]))
    batch.add(2, Request([1], processors=[(DeniesLast, {})]))
    results = batch.step([RowStep(slot, 1) for slot in range(3)], ZEROS)
    assert [type(result.error) for result in results] == [ProcessorFailed, ProcessorFailed, type(None)]
    assert results[0].logits.tolist() == [0] * 8
    assert results[0].places == (None,)


def test_ids_outside_the_vocabulary(batch: Batch) -> None:
    batch.add(0, Request([1]))
    (result,) = batch.step([RowStep(0, 1, [VOCAB])], ZEROS[:1])
    assert isinstance(result.error, InvalidArgument)
    with pytest.raises(InvalidArgument):
        batch.add(1, Request([VOCAB]))


class Mistaken(EditProcessor):
    def edit(self, request: Any, edits: Any) -> None:
        self.make(request.params["mistake"], edits)

    def make(self, mistake: str, edits: Any) -> None:
        if mistake == "deny":
            edits.deny([VOCAB])  # the wrong deny
        elif mistake == "allow":
            edits.allow([1, -1])  # the wrong allow
        elif mistake == "bias":
            edits.bias([VOCAB], 1.0)  # the wrong bias
        elif mistake == "bitmask":
            edits.bitmask([1, 2])  # the wrong bitmask
        elif mistake == "force":
            edits.deny([1])
            edits.force(VOCAB)  # the wrong force
        elif mistake == "third":
            edits.deny([1])
            edits.bias([2], 1.0)
            edits.deny(range(VOCAB + 1))  # the wrong third
        elif mistake == "extend":
            edits.deny([1])
            cached = RowEdits()
            cached.deny([VOCAB])  # the wrong extend
            edits.extend(cached)


@pytest.mark.slow
@pytest.mark.parametrize("place", ["here", "worker"])
def test_an_invalid_edit_has_the_line_that_made_it(place: Where) -> None:
    with open_runner(place) as runner:
        for mistake in ("deny", "allow", "bias", "bitmask", "force", "third", "extend"):
            batch = runner.open(VOCAB)
            batch.add(0, Request([1], processors=[(Mistaken, {"mistake": mistake})]))
            error = batch.step([RowStep(0, 1)], ZEROS[:1])[0].error
            assert isinstance(error, InvalidArgument)
            *_, frame, line, last = error.remote_traceback.splitlines()
            assert "test_in_process.py" in frame
            assert frame.endswith("in make")
            assert line.endswith(f"# the wrong {mistake}")
            assert error.message.endswith(last.partition(": ")[2])


def test_slots(batch: Batch) -> None:
    batch.add(0, Request([1]))
    with pytest.raises(InvalidArgument, match="slot 0 is taken"):
        batch.add(0, Request([1]))
    batch.remove(0)
    batch.add(0, Request([2]))
    with pytest.raises(NotFound, match="slot 1 holds no request"):
        batch.step([RowStep(1, 1)], ZEROS[:1])


def test_classes_with_one_name_are_two_processors(batch: Batch) -> None:
    def made(token_id: int) -> type[EditProcessor]:
        class Denies(EditProcessor):
            def edit(self, request: Any, edits: Any) -> None:
                edits.deny([token_id])

        return Denies

    batch.add(0, Request([1], processors=[(made(2), {}), (made(5), {})]))
    (result,) = batch.step([RowStep(0, 1)], ZEROS[:1])
    assert np.flatnonzero(np.isinf(result.logits)).tolist() == [2, 5]


def test_an_option_of_the_server() -> None:
    with open_runner(options={"max_tokens_per_request": 1}) as runner:
        batch = runner.open(VOCAB)
        with pytest.raises(Exception, match="2 token ids in one request"):
            batch.add(0, Request([1, 2], processors=[(DeniesLast, {})]))
    with pytest.raises(InvalidArgument, match="max_moons"):
        open_runner(options={"max_moons": 1})
