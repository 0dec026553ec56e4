"""Every implementation compared with the reference, over shapes, dtypes, strides and edge rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from logitport.core.edits import EditKind, Edits, RowEdits, pack_bits
from logitport.errors import InvalidArgument
from logitport.ops import apply_edits
from logitport.ops.apply_edits import naive
from tests.core.edits_strategies import row_edits
from tests.tiers import examples

if TYPE_CHECKING:
    from collections.abc import Callable

INF = float("inf")
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}

# From storage of [2 * rows, width + 7] to logits of [rows, width].
LAYOUTS: dict[str, Callable[[Any, int], Any]] = {
    "contiguous": lambda storage, width: storage.reshape(-1)[: len(storage) // 2 * width].reshape(-1, width),
    "padded": lambda storage, width: storage[len(storage) // 2 :, :width],
    "every other row": lambda storage, width: storage[::2, 3 : width + 3],
    "transposed": lambda storage, width: storage.reshape(-1)[: len(storage) // 2 * width].reshape(width, -1).T,
}


def _mask(rng: np.random.Generator, width: int, share: float) -> np.ndarray:
    return pack_bits(rng.random(width) < share)


def edge_rows(width: int, rng: np.random.Generator) -> list[RowEdits]:
    """One row for each error-prone case."""
    ids = rng.integers(0, width, 1 + width // 3)
    others = rng.integers(0, width, 40)

    def row(*calls: tuple[Any, ...]) -> RowEdits:
        edits = RowEdits()
        for name, *arguments in calls:
            getattr(edits, name)(*arguments)
        return edits

    return [
        row(),
        row(("deny", ids)),
        row(("deny", np.concatenate([ids, ids]))),
        row(("deny", np.arange(width))),
        row(("deny", ids), ("deny", others)),
        row(("allow", [])),
        row(("allow", ids)),
        row(("allow", ids), ("allow", others), ("allow", np.arange(width))),
        row(("force", 0)),
        row(("force", width - 1), ("bias", [width - 1, 0], [2.5, 1.0])),
        row(("force", width // 2), ("deny", [width // 2])),
        row(("bias", ids, rng.normal(size=ids.size))),
        row(("bias", ids, 0.1), ("deny", others), ("bias", np.concatenate([ids, others]), 1.7)),
        row(("bias", [0], [3e38]), ("bias", [0, 0], [3e38, 1.0]), ("deny", [width - 1])),
        row(("bias", ids, -3e38), ("allow", ids), ("bias", ids, -3e38)),
        row(("bitmask", _mask(rng, width, 0.5))),
        row(("bitmask", _mask(rng, width, 0.0))),
        row(("bitmask", _mask(rng, width, 1.0))),
        row(("bitmask", _mask(rng, width, 0.7)), ("bitmask", _mask(rng, width, 0.7)), ("allow", ids), ("deny", others)),
        row(("bias", [0], [1.0]), ("bitmask", _mask(rng, width, 0.5)), ("bias", ids, -1.0)),
        row(),
    ]


def make_storage(rows: int, width: int, dtype: str, rng: np.random.Generator) -> torch.Tensor:
    """Random values, including NaNs with payloads, infinities, zeros of both signs and subnormals."""
    values = torch.from_numpy(rng.normal(size=(rows, width), scale=3.0)).to(DTYPES[dtype])
    patterns = {
        "float32": [0x7FC12345, 0xFF800000, 0x7F800000, 0x80000000, 0x00000001, 0xFFC00001],
        "float16": [0x7E55, 0xFC00, 0x7C00, 0x8000, 0x0001, 0xFE01],
        "bfloat16": [0x7FD5, 0xFF80, 0x7F80, 0x8000, 0x0001, 0xFFC1],
    }[dtype]
    bits = values.view(torch.int32 if dtype == "float32" else torch.int16).numpy()
    chosen = rng.random(bits.shape) < 0.2
    unsigned = np.array(patterns, np.uint32 if dtype == "float32" else np.uint16)
    bits[chosen] = rng.choice(unsigned, size=int(chosen.sum())).view(bits.dtype)
    return values


def biased_cells(edits: Edits, shape: tuple[int, int]) -> np.ndarray:
    biased = np.zeros(shape, np.bool_)
    of_bias = edits.kinds == EditKind.BIAS
    biased[edits.rows[of_bias].repeat(edits.counts[of_bias]), edits.ids[of_bias.repeat(edits.counts)]] = True
    return biased


def compare(implementation: Any, bits: Any, edits: Edits, storage: Any, view: Callable[[Any], Any]) -> None:
    """Apply to a copy of the storage. All bits must equal the reference's, also those outside the logits."""
    is_tensor = isinstance(storage, torch.Tensor)
    expected = storage.clone() if is_tensor else storage.copy()
    got = storage.to(implementation.device, copy=True) if is_tensor else storage.copy()
    naive.apply_edits(edits, view(expected))
    implementation.run(edits, view(got))
    markers = torch.zeros(storage.shape, dtype=torch.bool) if is_tensor else np.zeros(storage.shape, np.bool_)
    biased = biased_cells(edits, tuple(view(markers).shape))
    view(markers)[:] = torch.from_numpy(biased) if is_tensor else biased
    wide, wide_got = (np.asarray(values.cpu().double() if is_tensor else values) for values in (expected, got))
    # Where something was added, a NaN may get another payload, and the sum of two zeros another sign: a bias of -0.0
    # alone is added as it is, and a sum of biases starts at 0.0. Triton's interpreter does not round bfloat16.
    alike = (np.isnan(wide) & np.isnan(wide_got)) | ((wide == 0) & (wide_got == 0))
    if is_tensor and storage.dtype == torch.bfloat16 and not implementation.rounds_bfloat16:
        alike |= np.isclose(wide.clip(-3e38, 3e38), wide_got.clip(-3e38, 3e38), rtol=2**-7, atol=1e-38)
    differs = (bits(expected) != bits(got)) & ~(alike & np.asarray(markers))
    assert not differs.any(), f"{np.argwhere(differs)[:5].tolist()}: {wide[differs][:5]}, not {wide_got[differs][:5]}"


WIDTHS = [1, 64, 205]
# Each width with each dtype and each layout, and each dtype with each layout: 12 cases of 36.
PAIRWISE = [
    (WIDTHS[(at + place) % len(WIDTHS)], dtype, layout)
    for at, dtype in enumerate(DTYPES)
    for place, layout in enumerate(LAYOUTS)
]


@pytest.mark.parametrize(("width", "dtype", "layout"), PAIRWISE)
def test_edited_tensors_equal_the_reference(
    implementation: Any, bits: Any, width: int, dtype: str, layout: str
) -> None:
    rng = np.random.default_rng(width)
    row_edits = edge_rows(width, rng)
    order = rng.permutation(len(row_edits))
    edits = Edits.pack([(int(row), row_edits[row]) for row in order], width)
    storage = make_storage(2 * len(row_edits), width + 7, dtype, rng)
    compare(implementation, bits, edits, storage, lambda whole: LAYOUTS[layout](whole, width))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_edited_arrays_equal_the_reference(implementation: Any, bits: Any, dtype: str, layout: str) -> None:
    if not implementation.arrays:
        return
    width = 100
    rng = np.random.default_rng(0)
    edits = Edits.pack(enumerate(edge_rows(width, rng)), width)
    tensor = make_storage(2 * len(edge_rows(width, rng)), width + 7, dtype, rng)
    storage = tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16) if dtype == "bfloat16" else tensor.numpy()
    compare(implementation, bits, edits, storage, lambda whole: LAYOUTS[layout](whole, width))


@st.composite
def batches(draw: st.DrawFn) -> tuple[int, list[tuple[int, RowEdits]], int]:
    """Width, edits of some rows, and the number of rows."""
    width = draw(st.integers(1, 150))
    num_rows = draw(st.integers(1, 5))
    chosen = draw(st.lists(st.integers(0, num_rows - 1), unique=True))
    rows = [(row, draw(row_edits(width, max_ids=20))) for row in chosen]
    return width, rows, num_rows


@settings(max_examples=examples(40))
@given(batch=batches(), dtype=st.sampled_from(sorted(DTYPES)), seed=st.integers(0, 2**32 - 1))
def test_random_edits_equal_the_reference(implementation: Any, batch: Any, dtype: str, seed: int) -> None:
    width, rows, num_rows = batch
    edits = Edits.pack(rows, width)
    storage = make_storage(num_rows, width, dtype, np.random.default_rng(seed))
    integers = torch.int32 if dtype == "float32" else torch.int16
    compare(implementation, lambda logits: logits.cpu().view(integers).numpy(), edits, storage, lambda whole: whole)


def _apply(implementation: Any, logits: list[list[float]], *row_edits: RowEdits, vocab_size: int | None = None) -> Any:
    tensor = torch.tensor(logits, device=implementation.device)
    implementation.run(Edits.pack(enumerate(row_edits), vocab_size or tensor.shape[1]), tensor)
    return tensor.tolist()


def test_known_answers(implementation: Any) -> None:
    denied, allowed, forced, biased, masked = (RowEdits() for _ in range(5))
    denied.deny([0, 2])
    allowed.allow([1])
    allowed.bias([1], 0.5)
    forced.force(3)
    biased.bias([0, 0, 1], [1.0, 2.0, -4.0])
    masked.bitmask(np.array([0b0101], np.int32))
    logits = [[1.0, 2.0, 3.0, 4.0] for _ in range(6)]
    assert _apply(implementation, logits, denied, allowed, forced, biased, masked) == [
        [-INF, 2.0, -INF, 4.0],
        [-INF, 2.5, -INF, -INF],
        [-INF, -INF, -INF, 0.0],
        [4.0, -2.0, 3.0, 4.0],
        [1.0, -INF, 3.0, -INF],
        [1.0, 2.0, 3.0, 4.0],
    ]


def test_logits_wider_than_the_vocabulary(implementation: Any) -> None:
    denied, masked, allowed = (RowEdits() for _ in range(3))
    denied.deny([31])
    masked.bitmask(np.array([-1], np.int32))
    allowed.allow([0])
    logits = [[1.0] * 40 for _ in range(3)]
    assert _apply(implementation, logits, denied, masked, allowed, vocab_size=32) == [
        [1.0] * 31 + [-INF] + [1.0] * 8,
        [1.0] * 32 + [-INF] * 8,
        [1.0] + [-INF] * 39,
    ]


def test_biases_of_one_id_are_rounded_once(implementation: Any) -> None:
    if not implementation.rounds_bfloat16:
        return
    row_edits = RowEdits()
    row_edits.bias([0], 2**-8)
    row_edits.bias([0], 2**-8)
    logits = torch.ones(1, 1, dtype=torch.bfloat16, device=implementation.device)
    implementation.run(Edits.pack([(0, row_edits)], 1), logits)
    assert logits.item() == 1 + 2**-7  # added one by one, each would be rounded away


def test_a_leaf_that_requires_grad_is_edited(implementation: Any) -> None:
    row_edits = RowEdits()
    row_edits.deny([0])
    row_edits.force(1)
    row_edits.bias([0], 1.0)
    logits = torch.ones(1, 2, requires_grad=True, device=implementation.device)
    with torch.no_grad():
        implementation.run(Edits.pack([(0, row_edits)], 2), logits)
    assert logits.tolist() == [[-INF, 0.0]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("is_leaf", [True, False])
def test_logits_with_a_gradient_are_refused(is_leaf: bool, dtype: torch.dtype) -> None:
    weights = torch.ones(1, 2, dtype=dtype, requires_grad=True)
    logits = weights if is_leaf else weights * 3
    row_edits = RowEdits()
    row_edits.deny([0])
    before = logits.tolist()
    for edits in (Edits.pack([(0, row_edits)], 2), Edits.pack([], 2)):
        with pytest.raises(InvalidArgument, match="require gradients"):
            apply_edits(edits, logits)
    assert logits.tolist() == before
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            apply_edits(Edits.pack([(0, row_edits)], 2), logits)
        assert logits[0, 0] == -INF


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_edits_do_not_synchronize_with_the_gpu() -> None:
    width = 1000
    edits = Edits.pack(enumerate(edge_rows(width, np.random.default_rng(0))), width)
    logits = torch.zeros(len(edge_rows(width, np.random.default_rng(0))), width, device="cuda")
    apply_edits(edits, logits)  # compiles
    torch.cuda.set_sync_debug_mode("error")
    try:
        apply_edits(edits, logits)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_one_copy_and_one_kernel() -> None:
    width = 1000
    edits = Edits.pack(enumerate(edge_rows(width, np.random.default_rng(0))), width)
    logits = torch.zeros(len(edge_rows(width, np.random.default_rng(0))), width, device="cuda")
    apply_edits(edits, logits)  # compiles
    torch.cuda.synchronize()
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        apply_edits(edits, logits)
        torch.cuda.synchronize()
    on_device = [event.name for event in profile.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    assert sorted(name.partition(" (")[0] for name in on_device) == ["Memcpy HtoD", "edit_block"], on_device


@pytest.mark.parametrize(
    ("logits", "named"),
    [
        (torch.zeros(1, 2, dtype=torch.float64), "float64"),
        (torch.zeros(1, 2, dtype=torch.int32), "int32"),
        (np.zeros((1, 2)), "float64"),
        (np.broadcast_to(np.float32(0), (1, 2)), "read-only"),
        ([[0.0, 0.0]], "list"),
    ],
)
def test_unsupported_logits_are_refused(logits: Any, named: str) -> None:
    row_edits = RowEdits()
    row_edits.deny([0])
    with pytest.raises(InvalidArgument, match=named):
        apply_edits(Edits.pack([(0, row_edits)], 2), logits)
