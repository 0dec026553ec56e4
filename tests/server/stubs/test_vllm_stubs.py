"""The stubs of vLLM's buffers and helpers behave like vLLM's, without a GPU."""

from __future__ import annotations

import ctypes
import mmap

import pytest
import torch

from logitport_session.stubs.vllm.utils import math_utils
from logitport_session.stubs.vllm.v1.worker.gpu.buffer_utils import StagedWriteTensor, UvaBackedTensor


def test_writes_on_the_host_are_visible_after_the_copy() -> None:
    tensor = UvaBackedTensor(4, dtype=torch.int32)
    assert tensor.gpu.tolist() == [0, 0, 0, 0]
    tensor.np[1:3] = 5
    assert tensor.copy_to_uva().tolist() == tensor.gpu.tolist() == [0, 5, 5, 0]
    assert tensor.copy_to_uva(2).tolist() == tensor.gpu.tolist() == [0, 5]
    assert UvaBackedTensor((2, 3), dtype=torch.bool).gpu.shape == (2, 3)
    assert UvaBackedTensor((0, 3), dtype=torch.int32).gpu.shape == (0, 3)


def test_writes_are_staged_and_applied_together() -> None:
    tensor = StagedWriteTensor((3, 4), dtype=torch.int32, device=torch.device("cpu"))
    tensor.stage_write(2, 1, [7, 8, 9])
    tensor.stage_write(0, 0, {5: 1.0, 6: 2.0}.keys())
    tensor.stage_write(1, 0, [])
    tensor.stage_write_elem(1, 3)
    assert not tensor.gpu.any()
    tensor.apply_write()
    assert tensor.gpu.tolist() == [[5, 6, 0, 0], [3, 0, 0, 0], [0, 7, 8, 9]]
    tensor.gpu.zero_()
    tensor.apply_write()
    assert not tensor.gpu.any()


def test_the_later_of_two_writes_wins_and_discarded_writes_are_not_applied() -> None:
    tensor = StagedWriteTensor(3, dtype=torch.float32, device="cpu")
    tensor.stage_write_elem(1, 0.5)
    tensor.stage_write_elem(1, 1.5)
    tensor.apply_write()
    tensor.stage_write_elem(2, 4.0)
    tensor.clear_staged_writes()
    tensor.apply_write()
    assert tensor.gpu.tolist() == [0, 1.5, 0]


@pytest.mark.parametrize(("index", "start"), [(-1, 0), (0, -1)])
def test_a_negative_position_and_other_dtypes_are_rejected(index: int, start: int) -> None:
    with pytest.raises(ValueError, match="neither may be negative"):
        StagedWriteTensor((2, 2), torch.int32, "cpu").stage_write(index, start, [1])
    with pytest.raises(ValueError, match=r"torch\.int8; use int32, int64 or float32"):
        StagedWriteTensor(2, torch.int8, "cpu")


def test_a_large_buffer_takes_memory_only_for_written_pages() -> None:
    # malloc keeps this memory, which it would have to set to zeros for the buffer.
    freed = [bytearray(20_000) for _ in range(10_000)]
    kept = freed.pop()  # the end of the heap would be returned to the kernel
    del freed
    tensor = StagedWriteTensor((1024, 1 << 14), torch.int32, "cpu")
    tensor.stage_write(1000, 0, range(100))
    tensor.apply_write()
    assert tensor.gpu.numel() * 4 == 64 << 20
    assert tensor.gpu[1000, 99] == 99
    is_resident = ctypes.create_string_buffer((64 << 20) // mmap.PAGESIZE)
    begin = tensor.gpu.data_ptr() & -mmap.PAGESIZE
    assert ctypes.CDLL(None).mincore(ctypes.c_void_p(begin), ctypes.c_size_t(64 << 20), is_resident) == 0
    assert 1 <= sum(page & 1 for page in is_resident.raw) < len(is_resident) // 2
    del kept


def test_integer_arithmetic() -> None:
    assert [math_utils.cdiv(n, 4) for n in (0, 1, 4, 5)] == [0, 1, 1, 2]
    assert [math_utils.next_power_of_2(n) for n in (-1, 0, 1, 2, 3, 4, 5)] == [1, 1, 1, 2, 4, 4, 8]
