"""The kernel of edits: its GPU time and its host time, against moving the same bytes, xgrammar and vLLM.

- *Lists*: each row denies 100 ids and adds to 100 others.
- *Bitmasks*: each row has a random bitmask with half of its bits.
- *The mix*: a quarter of the rows each has denied ids, biases, a bitmask, and one forced id.

The floor of a case moves its bytes: a copy of the edits from pinned memory, and one kernel that fills the rows that
bitmasks and forces write. Rows with lists only are not in it.

xgrammar and vLLM are measured as they are called in an engine: the masks are in pinned memory, and a copy precedes the
kernel, as ours does. Their kernels alone, with the masks on the GPU, are compared with our kernel alone.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.gpu import results
from benchmarks.gpu.bitmask_peers import PEERS, BitmaskPeer
from benchmarks.gpu.job import Job
from benchmarks.gpu.timing import Stopwatch
from logitport.core.edits import EditKind, Edits, RowEdits, bitmask_words
from logitport.ops import apply_edits
from logitport.ops.apply_edits import naive

VOCAB_SIZE = 151_936
_ROWS = (64, 256)
_DTYPES = (torch.bfloat16, torch.float32)
_LISTED = 100
_REPEATS = 60


def run(job: Job) -> None:
    """Measure all cases."""
    vocab_size, rows_of_cases = (8000, (8,)) if job.tiny else (VOCAB_SIZE, _ROWS)
    stopwatch = Stopwatch(job.device, 3 if job.tiny else _REPEATS)
    for dtype in _DTYPES:
        for rows in rows_of_cases:
            logits = torch.randn(rows, vocab_size, device=job.device).to(dtype)
            case = f"{rows} rows of {vocab_size:,} {str(dtype).removeprefix('torch.')}"
            with job.case(case):
                _measure(job, case, logits, stopwatch)


def _measure(job: Job, case: str, logits: torch.Tensor, stopwatch: Stopwatch) -> None:
    rows, vocab_size = logits.shape
    whole: dict[str, float] = {}
    for name, make in (("lists", lists), ("bitmasks", bitmasks), ("mix", mix)):
        edits = make(rows, vocab_size)
        _check(job, f"{case}: {name}", edits, logits)
        times = stopwatch.gpu(lambda edits=edits: apply_edits(edits, logits))
        quantity = results.LISTS if name == "lists" else f"{name}, GPU time"
        whole[name] = job.times(case, quantity, times)
        whole[f"{name}, host"] = job.times(
            case, f"{name}, host time", stopwatch.host(lambda edits=edits: apply_edits(edits, logits))
        )
        floor = job.times(case, f"{name}, floor", stopwatch.gpu(_floor(edits, logits)))
        if name == "mix":
            job.record(case, results.MIX_TO_FLOOR, whole[name] / floor)
    words = bitmask_columns(rows, vocab_size)
    alone = _kernel_alone(bitmasks(rows, vocab_size), logits) if job.on_gpu else None
    ours_alone = job.times(case, "bitmasks, kernel alone", stopwatch.gpu(alone)) if alone else None
    for peer in PEERS:
        with job.case(f"{case}: {peer.name}"):
            _compare(job, case, peer(words, logits), whole, ours_alone, stopwatch)


def _compare(
    job: Job, case: str, peer: BitmaskPeer, whole: dict[str, float], ours_alone: float | None, stopwatch: Stopwatch
) -> None:
    name = peer.name
    gpu = job.times(case, f"bitmasks, {name}, GPU time", stopwatch.gpu(peer.apply))
    host = job.times(case, f"bitmasks, {name}, host time", stopwatch.host(peer.apply))
    bar = results.BITMASK_TO_VLLM if "vLLM" in name else results.BITMASK_TO_XGRAMMAR
    job.record(case, bar, whole["bitmasks"] / gpu, note=f"{name}, with the copies")
    if bar is results.BITMASK_TO_XGRAMMAR:
        job.record(case, results.HOST_TO_XGRAMMAR, whole["bitmasks, host"] / host, note=name)
    if ours_alone is not None:
        alone = job.times(case, f"bitmasks, {name}, kernel alone", stopwatch.gpu(peer.kernel))
        job.record(case, bar, ours_alone / alone, note=f"{name}, kernels alone")


def _check(job: Job, case: str, edits: Edits, logits: torch.Tensor) -> None:
    """Compare the first rows with the reference."""
    first = min(8, len(logits))
    count = int(np.searchsorted(edits.rows, first))
    end = int(edits.offsets[count])
    part = Edits(
        edits.rows[:count], edits.kinds[:count], edits.offsets[: count + 1], edits.ids[:end], edits.values[:end]
    )
    expected = logits[:first].cpu()
    found = logits[:first].clone()
    naive.apply_edits(part, expected)
    apply_edits(part, found)
    job.check(case, torch.equal(found.cpu(), expected), "the first rows equal the reference")


def _floor(edits: Edits, logits: torch.Tensor) -> Callable[[], object]:
    """A call that moves the bytes of a case."""
    written = np.isin(edits.kinds, (EditKind.FORCE, EditKind.BITMASK))
    count = len(np.unique(edits.rows[written]))
    on_gpu = logits.is_cuda
    plan = torch.zeros(len(edits.ids) + len(edits.values), dtype=torch.int32, pin_memory=on_gpu)
    target = torch.empty_like(plan, device=logits.device)
    filled = logits.clone()[: max(1, count)] if count else torch.empty(1, device=logits.device)

    def move() -> None:
        target.copy_(plan, non_blocking=True)
        filled.fill_(-torch.inf)

    return move


def _kernel_alone(edits: Edits, logits: torch.Tensor) -> Callable[[], object]:
    from logitport.ops.apply_edits import triton

    plan = triton.send(edits, logits.device)
    return lambda: triton.launch(plan, logits)


def lists(rows: int, vocab_size: int) -> Edits:
    """Each row denies ids, and adds to others."""
    random = np.random.default_rng(0)
    return Edits.pack([(row, _listed(random, vocab_size, deny=True, bias=True)) for row in range(rows)], vocab_size)


def bitmasks(rows: int, vocab_size: int) -> Edits:
    """Each row has a bitmask."""
    return Edits.pack(
        [(row, _masked(words)) for row, words in enumerate(bitmask_columns(rows, vocab_size))], vocab_size
    )


def mix(rows: int, vocab_size: int) -> Edits:
    """A quarter of the rows each: denied ids, biases, a bitmask, a forced id."""
    random = np.random.default_rng(0)
    words = bitmask_columns(rows, vocab_size)
    packed = []
    for row in range(rows):
        if row % 4 == 2:
            packed.append((row, _masked(words[row])))
        elif row % 4 == 3:
            packed.append((row, _forced(int(random.integers(vocab_size)))))
        else:
            packed.append((row, _listed(random, vocab_size, deny=row % 4 == 0, bias=row % 4 == 1)))
    return Edits.pack(packed, vocab_size)


def bitmask_columns(rows: int, vocab_size: int) -> NDArray[np.int32]:
    """Random bitmasks, int32[rows, words]."""
    random = np.random.default_rng(1)
    return random.integers(-(1 << 31), 1 << 31, (rows, bitmask_words(vocab_size)), dtype=np.int64).astype(np.int32)


def _listed(random: np.random.Generator, vocab_size: int, *, deny: bool, bias: bool) -> RowEdits:
    ids = random.choice(vocab_size, 2 * _LISTED, replace=False)
    edits = RowEdits()
    if deny:
        edits.deny(ids[:_LISTED])
    if bias:
        edits.bias(ids[_LISTED:], np.full(_LISTED, 1.5, np.float32))
    return edits


def _masked(words: NDArray[np.int32]) -> RowEdits:
    edits = RowEdits()
    edits.bitmask(words)
    return edits


def _forced(token_id: int) -> RowEdits:
    edits = RowEdits()
    edits.force(token_id)
    return edits
