"""The compiled core writes the same bits to logits as the Python version."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from logitport.core.edits import Edits, RowEdits
from logitport.ops.apply_edits import cpu
from tests.core import other_threads
from tests.core.edits_strategies import batches
from tests.tiers import examples

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.core.implementations import Implementation

Both = tuple["Implementation", "Implementation"]

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
# From storage of [2 * rows, 2 * width] to logits of [rows, width].
LAYOUTS: dict[str, Callable[[Any, int, int], Any]] = {
    "contiguous": lambda storage, rows, width: storage.reshape(-1)[: rows * width].reshape(rows, width),
    "padded": lambda storage, rows, width: storage[rows:, 1 : width + 1],
    "every other row": lambda storage, rows, width: storage[: 2 * rows : 2, :width],
    "every other id": lambda storage, rows, width: storage[:rows, ::2],
    "transposed": lambda storage, rows, width: storage.reshape(-1)[: rows * width].reshape(width, rows).T,
}


def _random_bits(rows: int, width: int, dtype: str, seed: int, *, nan: bool) -> np.ndarray:
    """Any bits: values of all sizes, infinities, zeros of both signs, subnormals, and NaNs with payloads."""
    unsigned = np.uint32 if dtype == "float32" else np.uint16
    rng = np.random.default_rng(seed)
    bits = rng.integers(0, np.iinfo(unsigned).max, (rows, width), unsigned, endpoint=True)
    if not nan:
        infinity = {"float32": 0x7F800000, "float16": 0x7C00, "bfloat16": 0x7F80}[dtype]
        bits[(bits & unsigned(np.iinfo(unsigned).max >> 1)) > infinity] = infinity
    return bits


def _tensor(bits: np.ndarray, dtype: str) -> torch.Tensor:
    return torch.from_numpy(bits.view(f"i{bits.itemsize}").copy()).view(DTYPES[dtype])


def _array(bits: np.ndarray, dtype: str) -> np.ndarray:
    return bits.copy().view(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)


def _bits(storage: Any) -> np.ndarray:
    if isinstance(storage, torch.Tensor):
        return storage.view(torch.int32 if storage.itemsize == 4 else torch.int16).numpy()
    return np.asarray(storage.view(f"i{storage.itemsize}"))


@settings(max_examples=examples(400))
@given(
    batch=batches(largest=2.0**127),
    dtype=st.sampled_from(sorted(DTYPES)),
    layout=st.sampled_from(sorted(LAYOUTS)),
    make=st.sampled_from([_tensor, _array]),
    nan=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_the_bits_are_those_of_the_python_version(
    both: Both, batch: tuple[Edits, int, int], dtype: str, layout: str, make: Any, nan: bool, seed: int
) -> None:
    edits, num_rows, width = batch
    bits = _random_bits(2 * num_rows, 2 * width, dtype, seed, nan=nan)
    storages = [make(bits, dtype) for _ in both]
    for one, storage in zip(both, storages, strict=True):
        one.apply_edits(edits, LAYOUTS[layout](storage, num_rows, width))
    expected, found = map(_bits, storages)
    assert (expected == found).all(), np.argwhere(expected != found)[:5].tolist()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("value", [0.0, -0.0, 1e-8, -3e-8, 0.1, -7.25, 65519.9, -3e38])
def test_each_value_of_16_bits_has_the_sum_of_the_python_version(both: Both, dtype: str, value: float) -> None:
    width = 1 << 16
    bits = np.arange(width, dtype=np.uint16)[None]
    if dtype == "bfloat16":
        bits[(bits & 0x7FFF) > 0x7F80] = 0  # the core leaves NaNs to the Python version
    edits = RowEdits()
    edits.bias(np.arange(width), value)
    python, fast = (_tensor(bits, dtype) for _ in both)
    both[0].apply_edits(Edits.pack([(0, edits)], width), python)
    assert cpu.apply_edits_compiled(Edits.pack([(0, edits)], width), fast)
    assert (_bits(python) == _bits(fast)).all()


def _denied(rows: list[int], token_id: int, width: int) -> Edits:
    edits = RowEdits()
    edits.deny([token_id])
    return Edits.pack([(row, edits) for row in rows], width)


@pytest.mark.usefixtures("both")
@pytest.mark.parametrize(
    ("edits", "logits"),
    [
        (_denied([1, 0], 3, 8), np.zeros((2, 8), np.float32)),
        (_denied([2], 3, 8), np.zeros((2, 8), np.float32)),
        (_denied([0], 8, 9), np.zeros((2, 8), np.float32)),
        (_denied([0], 3, 8), np.zeros((2, 8), ">f4")),
        (_denied([0], 3, 8), np.lib.stride_tricks.as_strided(np.zeros(8, np.float32), (2, 8), (0, 4))),
        (_denied([0], 3, 8), np.zeros(2 * 8 * 4 + 1, np.uint8)[1:].view(np.float32).reshape(2, 8)),
    ],
    ids=["rows out of order", "row out of range", "id out of range", "byte order", "shared elements", "alignment"],
)
def test_other_edits_and_logits_are_left_to_python(edits: Edits, logits: np.ndarray) -> None:
    before = logits.copy()
    assert not cpu.apply_edits_compiled(edits, logits)
    assert (logits == before).all()


@pytest.mark.parametrize(
    "logits", [torch._efficientzerotensor((1, 4)), torch.zeros(1, 4).to_sparse()], ids=["zeros", "sparse"]
)
def test_a_tensor_without_memory_is_refused(implementation: Implementation, logits: torch.Tensor) -> None:
    with pytest.raises((RuntimeError, TypeError)):
        implementation.apply_edits(_denied([0], 1, 4), logits)


@pytest.mark.usefixtures("both")
def test_a_biased_nan_of_bfloat16_is_left_to_python() -> None:
    edits = RowEdits()
    edits.bias([0, 1], 1.0)
    logits = torch.tensor([[1.0, float("nan"), 3.0]], dtype=torch.bfloat16)
    assert not cpu.apply_edits_compiled(Edits.pack([(0, edits)], 3), logits)
    assert logits[0, 0] == 1.0


@pytest.mark.usefixtures("both")
def test_other_threads_run_while_whole_rows_are_written() -> None:
    forced = RowEdits()
    forced.force(1)
    logits = torch.zeros(64, 1 << 20)
    edits = Edits.pack([(row, forced) for row in range(64)], logits.shape[1])
    assert other_threads.run_during([lambda: cpu.apply_edits_compiled(edits, logits)] * 50)
