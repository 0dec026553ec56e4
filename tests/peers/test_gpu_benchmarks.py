"""The peers of `python -m benchmarks.gpu`, as far as they run without a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# vLLM's kernel of bitmasks, and ours alone, both under Triton's interpreter.
KERNELS = """
import torch
from triton.runtime import interpreter
from benchmarks.gpu.bitmask_peers import import_vllm
from benchmarks.gpu.jobs import edits
from logitport.ops.apply_edits import naive, triton


# vLLM's kernel stores with a mask of integers, 0 and 1. The interpreter of Triton 3.9 accepts booleans alone; its
# compiler makes no difference.
store = interpreter.InterpreterBuilder.create_masked_store


def store_by_booleans(self, pointers, values, mask, *policy):
    mask.data = mask.data.astype(bool)
    return store(self, pointers, values, mask, *policy)


interpreter.InterpreterBuilder.create_masked_store = store_by_booleans

rows, width = 3, 9000
vllm = import_vllm()
words = torch.from_numpy(edits.bitmask_columns(rows, width))
expected, theirs, ours = (torch.zeros(rows, width) for _ in range(3))
naive.apply_edits(edits.bitmasks(rows, width), expected)
places = torch.arange(rows + 1, dtype=torch.int32)
vllm._apply_grammar_bitmask_kernel[rows, 2](
    theirs, width, places, places, words, words.stride(0), width, MASK_STRIDE=1,
    BLOCK_SIZE=vllm.GRAMMAR_BITMASK_BLOCK_SIZE,
)
triton.launch(triton.send(edits.bitmasks(rows, width), ours.device), ours)
print(torch.equal(theirs, expected), torch.equal(ours, expected))
"""


def run(*arguments: str, **variables: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    command = [sys.executable, *arguments]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_vllms_kernel_gives_the_same_logits() -> None:
    assert run("-c", KERNELS, TRITON_INTERPRET="1").split() == ["True", "True"]


@pytest.mark.parametrize("job", ["sampling", "mix"])
def test_jobs_with_sglang(tmp_path: Path, job: str) -> None:
    """In a process of its own: the job leaves SGLang's modules imported."""
    from benchmarks.gpu import results

    run("-m", "benchmarks.gpu.job", job, "--device", "cpu", "--tiny", GPU_RESULTS=str(tmp_path))
    lines = results.load(tmp_path)
    assert {results.SAMPLING, results.EXPOSED_4K} & {line.quantity for line in lines}
    assert all(line.met for line in lines if line.quantity == results.CORRECT)
