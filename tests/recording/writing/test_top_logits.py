"""The best logits of rows: on the host and on a device the same."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from logitport_recording.writing.top_logits import _OnDevice, _OnHost, log_sum

ROWS = [0, 2]


@pytest.mark.parametrize("top_k", [1, 3, 8])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_both_ways_give_the_same(dtype: torch.dtype, top_k: int) -> None:
    """The operations of a device run on the CPU here."""
    before = torch.randperm(24, generator=torch.Generator().manual_seed(1)).reshape(3, 8).to(dtype)
    after = before.clone()
    after[:, 2] = float("-inf")
    after[:, 5] += 100
    found = []
    for kind in (_OnHost, _OnDevice):
        taken = kind(before, ROWS, top_k, None)
        found.append([taken.tops(), kind(after, ROWS, top_k, taken).tops()])
    for host, device in zip(*found, strict=True):
        for one, other in zip(host, device, strict=True):
            assert one.ids == other.ids
            assert one.logits == other.logits
            assert one.log_sum == pytest.approx(other.log_sum)
    ids = [[np.frombuffer(top.ids, "<i4").tolist() for top in tops] for tops in found[0]]
    for place, row in enumerate(ROWS):
        best = before[row].float().argsort(descending=True)[:top_k].tolist()
        assert ids[0][place] == best
        assert set(ids[1][place]) == {*best, *after[row].float().argsort(descending=True)[:top_k].tolist()}


def test_rows_are_copied() -> None:
    logits = np.ones((1, 4), np.float32)
    taken = _OnHost(logits, [0], 2, None)
    logits[:] = 7
    assert taken.tops()[0].logits == np.ones(2, "<f4").tobytes()


def test_the_sum_of_a_row_without_allowed_ids() -> None:
    assert log_sum(np.full(3, -np.inf, np.float32)) == -np.inf
    assert log_sum(np.full(3, 1e30, np.float32)) == pytest.approx(1e30)
