"""Conversion of logits to messages and back."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

from logitport import InvalidArgument
from logitport.core import tensors
from logitport_proto import common_pb2

TORCH = {"FP32": torch.float32, "FP16": torch.float16, "BF16": torch.bfloat16}
NUMPY = {"FP32": np.dtype(np.float32), "FP16": np.dtype(np.float16), "BF16": np.dtype(ml_dtypes.bfloat16)}


def sample(datatype: str, rows: int = 3, width: int = 5) -> torch.Tensor:
    """Values with special bit patterns among them."""
    values = torch.linspace(-3, 3, rows * width).reshape(rows, width)
    values.view(-1)[:3] = torch.tensor([float("-inf"), -0.0, float("nan")])[: rows * width]
    return values.to(TORCH[datatype])


def bits(array: Any) -> Any:
    return array.contiguous().view(torch.uint8).numpy().tobytes() if tensors.is_torch(array) else array.tobytes()


def written(array: Any) -> common_pb2.Tensor:
    message = common_pb2.Tensor()
    tensors.write(message, array)
    return message


def sample_array(datatype: str) -> Any:
    return np.frombuffer(bits(sample(datatype)), NUMPY[datatype]).reshape(3, 5)


@pytest.mark.parametrize("make", [sample, sample_array])
@pytest.mark.parametrize("datatype", TORCH)
def test_a_round_trip(datatype: str, make: Any) -> None:
    logits = make(datatype)
    message = written(logits)
    assert (message.datatype, list(message.shape), message.raw) == (datatype, [3, 5], bits(logits))
    back = tensors.like(message, logits)
    assert (back.dtype, back.shape, bits(back)) == (logits.dtype, logits.shape, bits(logits))
    back[:] = 0  # the copy is writable


@pytest.mark.parametrize("datatype", TORCH)
def test_any_strides(datatype: str) -> None:
    logits = sample(datatype, 5, 8)
    for view in (logits.t(), logits[:, ::2], logits[1:4, 2:7], logits[:1].expand(3, -1)):
        assert written(view).raw == bits(view.clone(memory_format=torch.contiguous_format))
    array = np.arange(40, dtype=np.float32).reshape(5, 8)
    for of_array in (array.T, array[:, ::2], array[::-1], np.asfortranarray(array)):
        assert written(of_array).raw == np.ascontiguousarray(of_array).tobytes()


@pytest.mark.parametrize("datatype", NUMPY)
def test_arrays_over_memory(datatype: str) -> None:
    memory = bytearray(2 * 3 * NUMPY[datatype].itemsize + 1)
    array = tensors.view(memory, datatype, (2, 3), with_torch=False)
    assert (array.dtype, array.shape) == (NUMPY[datatype], (2, 3))
    array[...] = 1
    assert bytes(memory) == np.ones(6, NUMPY[datatype]).tobytes() + b"\0"


def test_an_array_of_a_dtype_that_numpy_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(tensors.DATATYPES, "BF16", ("bfloat16 without ml_dtypes", 2))
    with pytest.raises(InvalidArgument, match="or install ml_dtypes"):
        tensors.view(bytearray(12), "BF16", (2, 3), with_torch=False)


def test_numpy_of_the_other_byte_order() -> None:
    logits = np.array([[1.5, -2.0]], np.dtype(">f4"))
    message = written(logits)
    assert message.raw == np.array([[1.5, -2.0]], "<f4").tobytes()
    assert tensors.like(message, logits).tolist() == [[1.5, -2.0]]


@pytest.mark.parametrize(
    ("dtype", "datatype"),
    [
        *((dtype, datatype) for datatype, dtype in TORCH.items()),
        *((dtype, datatype) for datatype, dtype in NUMPY.items()),
        *((dtype.type, datatype) for datatype, dtype in NUMPY.items()),
        ("float32", "FP32"),
        ("bfloat16", "BF16"),
    ],
)
def test_names_of_dtypes(dtype: Any, datatype: str) -> None:
    assert tensors.datatype_of(dtype) == datatype


@pytest.mark.parametrize("dtype", [torch.float64, np.float64, np.dtype(np.int32), "int8", torch.bool, None, float])
def test_unsupported_dtypes(dtype: Any) -> None:
    with pytest.raises(InvalidArgument, match="cannot be sent"):
        tensors.datatype_of(dtype)


@pytest.mark.parametrize("logits", [[[1.0]], None, "x", torch.ones(3), np.ones((1, 2, 3))])
def test_objects_that_are_not_logits(logits: Any) -> None:
    with pytest.raises(InvalidArgument, match="pass "):
        tensors.check_matrix(logits)


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (common_pb2.Tensor(datatype="FP64", shape=[1, 1], raw=bytes(8)), "datatype 'FP64'; send one of FP32"),
        (common_pb2.Tensor(datatype="", shape=[1, 1], raw=bytes(4)), "datatype ''"),
        (
            common_pb2.Tensor(datatype="FP32", shape=[2, 3], raw=bytes(20)),
            r"FP32\[2, 3\] takes 24 bytes inline; the message has 20",
        ),
        (common_pb2.Tensor(datatype="BF16", shape=[2, 3], raw=bytes(13)), "takes 12 bytes"),
        (common_pb2.Tensor(datatype="FP32", shape=[-1, -1], raw=bytes(4)), "negative"),
        (common_pb2.Tensor(datatype="FP32", shape=[2**40, 2**40], raw=b""), "takes"),
    ],
)
def test_malformed_tensor_messages(message: common_pb2.Tensor, reason: str) -> None:
    with pytest.raises(InvalidArgument, match=reason):
        tensors.to_torch(message)
    with pytest.raises(InvalidArgument, match=reason):
        tensors.like(message, np.empty((1, 1), np.float32))


@pytest.mark.parametrize("rows", [[0, 1, 2, 3, 4], [2], [1, 2], [0, 2, 4], [1, 4], [0, 1, 3], [0, 2, 3, 4], []])
@pytest.mark.parametrize("kind", ["torch", "numpy"])
@pytest.mark.parametrize("to", ["view or copy", "out"])
def test_some_rows(rows: list[int], kind: str, to: str) -> None:
    logits: Any = torch.arange(10.0).reshape(5, 2) if kind == "torch" else np.arange(10, dtype=np.float32).reshape(5, 2)
    before = logits.tolist()
    out = (torch if kind == "torch" else np).full((len(rows), 2), -1.0, dtype=logits.dtype) if to == "out" else None
    taken = tensors.take_rows(logits, rows, out)
    assert out is None or taken is out
    assert taken.tolist() == [before[row] for row in rows]
    tensors.put_rows(logits, rows, tensors.like(written(taken + 10), logits))
    assert logits.tolist() == [[v + 10 for v in old] if row in rows else old for row, old in enumerate(before)]


@pytest.mark.parametrize(
    ("rows", "span"),
    [
        ([3], slice(3, 4, 1)),
        ([1, 2, 3], slice(1, 4, 1)),
        ((0, 5), slice(0, 6, 5)),
        (range(2, 11, 4), slice(2, 11, 4)),
        ([0, 2, 3], None),
        ([2, 2], None),
        ([3, 1], None),
        ([], None),
    ],
)
def test_evenly_spaced_rows(rows: Any, span: slice | None) -> None:
    assert tensors.even_span(rows) == span
