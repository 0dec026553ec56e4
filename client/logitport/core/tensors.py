"""Conversion of logits to messages and back: torch (any device) and numpy; float32, float16 and bfloat16."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from logitport.errors import InvalidArgument
from logitport.system.installation import has_torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch
    from numpy.typing import NDArray

    from logitport_proto import common_pb2

# KServe v2's datatypes: the dtype's name in torch and numpy, and bytes per element.
DATATYPES = {"FP32": ("float32", 4), "FP16": ("float16", 2), "BF16": ("bfloat16", 2)}
NOT_TORCH = frozenset((list, tuple, np.ndarray))  # the usual types, decided in a third of the time
_BY_DTYPE = {dtype: datatype for datatype, (dtype, _) in DATATYPES.items()}


def without_gradients(logits: Any) -> AbstractContextManager[object]:
    """Return a context in which autograd records nothing of these logits, a torch tensor or a numpy array."""
    if not is_torch(logits):
        return nullcontext()
    import torch

    return torch.no_grad()


def is_torch(array: object) -> bool:
    """Whether `array` is a torch tensor; does not import torch."""
    return type(array).__module__.partition(".")[0] == "torch"


def on_host(array: Any) -> Any:
    """Return a torch tensor of any device as a numpy array, bfloat16 as float32; another value unchanged."""
    if type(array) in NOT_TORCH or not is_torch(array):
        return array
    tensor = array.detach().cpu()
    return (tensor.float() if str(tensor.dtype) == "torch.bfloat16" else tensor).numpy()


@cache
def datatype_of(dtype: object) -> str:
    """KServe v2's name of a torch dtype, a numpy dtype, or a dtype's name. Raises InvalidArgument for any other."""
    name = str(getattr(dtype, "name", dtype)).removeprefix("torch.")
    if isinstance(dtype, type) and issubclass(dtype, np.generic):
        name = np.dtype(dtype).name
    if name not in _BY_DTYPE:
        raise InvalidArgument(f"logits of dtype {name} cannot be sent; convert them to one of {', '.join(_BY_DTYPE)}")
    return _BY_DTYPE[name]


def check_matrix(logits: Any) -> tuple[int, int]:
    """Return (rows, vocab_size) of logits.

    Raises:
        InvalidArgument: the argument is not a torch tensor or numpy array of two dimensions.
    """
    if not (is_torch(logits) or isinstance(logits, np.ndarray)):
        raise InvalidArgument(f"logits are a {type(logits).__name__}; pass a torch tensor or a numpy array")
    if len(logits.shape) != 2:
        raise InvalidArgument(f"logits have shape {list(logits.shape)}; pass [rows, vocab_size]")
    return int(logits.shape[0]), int(logits.shape[1])


def check_gradient(logits: Any) -> None:
    """Check that autograd does not record what happens to these logits, a torch tensor or a numpy array.

    Processing writes to the memory of the logits, without a gradient. Operations after it would get wrong gradients.

    Raises:
        InvalidArgument: the logits require gradients, and grad mode is on.
    """
    if getattr(logits, "requires_grad", False):
        import torch

        if torch.is_grad_enabled():
            raise InvalidArgument(
                "the logits require gradients, and processors change them without one: gradients computed from the "
                "processed logits would be wrong. Process them under torch.no_grad(), or pass logits.detach()"
            )


def write(message: common_pb2.Tensor, array: Any) -> None:
    """Write a tensor or array into a message, inline. Raises InvalidArgument for an unsupported dtype."""
    message.datatype = datatype_of(array.dtype)
    message.shape[:] = list(array.shape)
    if is_torch(array):
        import torch

        array = array.detach().cpu().contiguous().view(torch.uint8).numpy()
    message.raw = array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()


def even_span(rows: Sequence[int]) -> slice | None:
    """Convert ascending, evenly spaced rows to a slice; None for other rows, or for no rows."""
    if not rows:
        return None
    first, end = rows[0], rows[-1] + 1
    step = rows[1] - first if len(rows) > 1 else 1
    return slice(first, end, step) if step > 0 and list(rows) == list(range(first, end, step)) else None


def take_rows(logits: Any, rows: Sequence[int], out: Any = None) -> Any:
    """Take ascending rows of the logits: a view if they are evenly spaced, else a copy.

    With `out`, which has their shape, dtype and device, the rows are always copied there.
    """
    span = even_span(rows)
    if span is not None:
        if out is None:
            return logits[span]
        out[...] = logits[span]
        return out
    if not is_torch(logits):
        return np.take(logits, rows, axis=0, out=out)
    import torch

    # Not index_select: on a CPU it copies the rows with a single thread.
    index = row_index(rows, logits)[:, None].expand(-1, logits.shape[1])
    return torch.gather(logits, 0, index, out=out)


def copied(array: Any) -> Any:
    """Copy a tensor or array."""
    return array.clone() if is_torch(array) else array.copy()


def put_rows(logits: Any, rows: Sequence[int], values: Any) -> None:
    """Overwrite ascending rows of the logits, in place."""
    if is_torch(values):
        values = values.to(logits.device, logits.dtype, non_blocking=True)  # blocks only if they are not pinned
    span = even_span(rows)
    if span is not None:
        logits[span] = values
    elif rows:
        logits[row_index(rows, logits) if is_torch(logits) else list(rows)] = values


def empty_rows(rows: int, like: Any) -> Any:
    """Make a matrix of any values with this number of rows, and the width, kind, dtype and device of `like`."""
    shape = rows, like.shape[1]
    return like.new_empty(shape) if is_torch(like) else np.empty(shape, like.dtype)


def is_same_memory(one: Any, other: Any) -> bool:
    """Whether two torch tensors, or two numpy arrays, are the same elements of the same memory."""
    if is_torch(one):
        return bool(one.is_set_to(other))
    return address(one) == address(other) and one.shape == other.shape and one.strides == other.strides


def rows_with_nan(logits: Any) -> list[int]:
    """Rows of float[rows, vocab_size] that hold a NaN, ascending; sampling from such a row can crash an engine.

    Always empty for logits on a GPU: reading them would wait for the device.
    """
    if not is_torch(logits):
        return np.flatnonzero(np.isnan(logits.max(axis=1))).tolist() if logits.size else []
    if logits.device.type != "cpu" or not logits.numel():
        return []
    rows: list[int] = logits.amax(dim=1).isnan().nonzero().flatten().tolist()
    return rows


def row_index(rows: Sequence[int], logits: torch.Tensor) -> torch.Tensor:
    """Make an index tensor, int64[rows], on the logits' device; the copy to a GPU does not block."""
    import torch

    return torch.tensor(rows, dtype=torch.int64, pin_memory=logits.is_cuda).to(logits.device, non_blocking=True)


def view(memory: Any, datatype: str, shape: tuple[int, int], *, with_torch: bool) -> Any:
    """Make a torch tensor or numpy array over writable memory (a buffer, or a tensor of bytes), and keep that alive.

    Raises:
        InvalidArgument: numpy lacks the dtype (bfloat16, unless ml_dtypes is imported).
    """
    dtype = DATATYPES[datatype][0]
    count = shape[0] * shape[1]
    if with_torch:
        import torch

        if is_torch(memory):
            return memory[: count * DATATYPES[datatype][1]].view(getattr(torch, dtype)).view(shape)
        if not count:
            return torch.empty(shape, dtype=getattr(torch, dtype))
        return torch.frombuffer(memory, dtype=getattr(torch, dtype), count=count).view(shape)
    return np.frombuffer(memory, numpy_dtype(dtype), count).reshape(shape)


def numpy_dtype(name: str) -> np.dtype[Any]:
    """Return numpy's dtype of this name. Raises InvalidArgument for bfloat16, unless ml_dtypes is installed."""
    with suppress(ImportError):
        if name == "bfloat16":
            import ml_dtypes  # type: ignore[import-untyped,unused-ignore]  # noqa: F401 - registers it
    try:
        return np.dtype(name)
    except TypeError:
        raise InvalidArgument(
            "numpy has no bfloat16; install torch, and open the session with dtype=torch.bfloat16, or install ml_dtypes"
        ) from None


def address(array: Any) -> int:
    """Address of the first element of a tensor or array; meaningful only in CPU memory."""
    return int(array.data_ptr() if is_torch(array) else array.__array_interface__["data"][0])


def byte_offset(rows: Any, buffer: Any) -> int | None:
    """Offset of rows in a buffer of the same kind and width; None if they are not consecutive rows of it."""
    contiguous = rows.is_contiguous() and rows.device == buffer.device if is_torch(rows) else rows.flags.c_contiguous
    if not contiguous or rows.dtype != buffer.dtype:
        return None
    offset = address(rows) - address(buffer)
    return offset if 0 <= offset <= buffer.nbytes - rows.nbytes else None


def to_torch(tensor: common_pb2.Tensor) -> torch.Tensor:
    """Convert to a new, writable CPU tensor.

    Raises:
        InvalidArgument: the datatype is unknown, or the number of bytes does not fit the shape.
    """
    import torch

    _check_size(tensor)
    dtype = getattr(torch, DATATYPES[tensor.datatype][0])
    if not tensor.raw:
        return torch.empty(tuple(tensor.shape), dtype=dtype)
    return torch.frombuffer(bytearray(tensor.raw), dtype=dtype).reshape(tuple(tensor.shape))


def of_sessions(logits: NDArray[Any]) -> Any:
    """Return these logits as sessions hold them: as a torch tensor on the same memory, if torch is installed."""
    if not has_torch():
        return logits
    import torch

    return torch.from_numpy(logits)


def from_proto(tensor: common_pb2.Tensor) -> Any:
    """Convert to a new, writable CPU tensor; to a numpy array if torch is not installed.

    Raises the errors of `to_torch` and `numpy_dtype`.
    """
    if has_torch():
        return to_torch(tensor)
    _check_size(tensor)
    return _to_numpy(tensor, numpy_dtype(DATATYPES[tensor.datatype][0]))


def like(tensor: common_pb2.Tensor, model: Any) -> Any:
    """Convert to a new tensor or array of the kind, dtype and device of `model`. Raises the errors of `to_torch`."""
    if is_torch(model):
        return to_torch(tensor).to(model.device)
    _check_size(tensor)
    return _to_numpy(tensor, model.dtype)


def _to_numpy(tensor: common_pb2.Tensor, dtype: np.dtype[Any]) -> NDArray[Any]:
    little_endian = np.frombuffer(bytearray(tensor.raw), dtype.newbyteorder("<"))
    return little_endian.reshape(tuple(tensor.shape)).astype(dtype, copy=False)


def _check_size(tensor: common_pb2.Tensor) -> None:
    if tensor.datatype not in DATATYPES:
        raise InvalidArgument(f"datatype {tensor.datatype!r}; send one of {', '.join(DATATYPES)}")
    if any(size < 0 for size in tensor.shape):
        raise InvalidArgument(f"shape {list(tensor.shape)} has a negative size")
    expected = math.prod(tensor.shape) * DATATYPES[tensor.datatype][1]
    if len(tensor.raw) != expected:
        raise InvalidArgument(
            f"{tensor.datatype}{list(tensor.shape)} takes {expected} bytes inline; the message has {len(tensor.raw)}"
        )
