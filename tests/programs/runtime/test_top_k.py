"""Ties of `top_k`: short rows are sorted together, long ones one by one, and both give the lower index first."""

from __future__ import annotations

import pytest
import torch

from logitport_programs.program import Value
from logitport_programs.runtime import kernels
from logitport_programs.runtime.kernels import KERNELS, KernelCall


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.bool])
@pytest.mark.parametrize("width", [2, 7, 4096, 4097, 6000])
def test_ties_have_the_lower_index_first(width: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    source = torch.randint(0, 3, (6, width)).to(dtype)
    if dtype.is_floating_point:
        source[1, width // 2 :] = float("nan")
    for k in {1, width // 2, width - 1, width} - {0}:
        out = torch.empty(6, k, dtype=torch.int64)
        KERNELS["top_k"].run(KernelCall(Value("top_k", (0,), integer=k)), [source], out, ())
        as_sorted = source.byte() if dtype is torch.bool else source
        assert torch.equal(out, torch.sort(as_sorted, dim=-1, descending=True, stable=True).indices[:, :k])


def test_short_rows_are_not_sorted_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two million pairs with ties, each would take 20 us."""

    def one_by_one(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(kernels, "_first_largest", one_by_one)
    out = torch.empty(1000, 1, dtype=torch.int64)
    KERNELS["top_k"].run(KernelCall(Value("top_k", (0,), integer=1)), [torch.zeros(1000, 2)], out, ())
    assert not out.any()
