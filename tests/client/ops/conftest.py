from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from logitport import ops
from logitport.ops import apply_edits, implementations
from logitport.ops.apply_edits import cpu, naive, native

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from types import ModuleType

    from logitport.core.edits import Edits

TRITON_MODULE = "logitport.ops.apply_edits.triton"


@dataclass(frozen=True)
class Implementation:
    """One way to apply edits, as the tests call it.

    Attributes:
        run: applies edits to a tensor on `device`, or to an array if `arrays`.
        device: the device of its tensors.
        arrays: whether it accepts numpy arrays too.
        rounds_bfloat16: False for Triton's interpreter, which truncates bfloat16 where a GPU rounds to nearest.
    """

    run: Callable[[Edits, Any], None]
    device: str = "cpu"
    arrays: bool = True
    rounds_bfloat16: bool = True


def import_triton_module(monkeypatch: pytest.MonkeyPatch, *, interpret: bool) -> ModuleType:
    """Import the module for Triton's interpreter or compiler. Triton decides when a kernel is decorated."""
    pytest.importorskip("triton")
    monkeypatch.setenv("TRITON_INTERPRET", "1" if interpret else "0")
    monkeypatch.delitem(sys.modules, TRITON_MODULE, raising=False)
    return importlib.import_module(TRITON_MODULE)


@pytest.fixture(
    scope="module",
    params=[
        "naive",
        "cpu",
        "native",
        "op",
        pytest.param("triton interpreted", marks=pytest.mark.slow),
        pytest.param("native on cuda", marks=pytest.mark.cuda),
        pytest.param("op on cuda", marks=pytest.mark.cuda),
    ],
)
def implementation(request: pytest.FixtureRequest) -> Iterator[Implementation]:
    name = request.param
    if "cuda" in name and not torch.cuda.is_available():
        pytest.skip("no GPU")
    with pytest.MonkeyPatch.context() as monkeypatch:
        if name == "triton interpreted":
            module = import_triton_module(monkeypatch, interpret=True)
            # Small sizes give several blocks per row and several chunks per edit, although rows are short.
            monkeypatch.setattr(module, "BLOCK", 64)
            monkeypatch.setattr(module, "CHUNK", 16)
            # The interpreter computes with numpy, which warns of overflows. A GPU does not.
            run = np.errstate(over="ignore", invalid="ignore")(module.apply_edits)
            yield Implementation(run, arrays=False, rounds_bfloat16=False)
        else:
            runs = {"naive": naive.apply_edits, "cpu": cpu.apply_edits, "native": native.apply_edits, "op": apply_edits}
            device = "cuda" if "cuda" in name else "cpu"
            yield Implementation(runs[name.partition(" ")[0]], device, arrays=device == "cpu")


def bits_of(array: Any) -> np.ndarray:
    """Return the bits of a tensor or array of floats as integers."""
    if isinstance(array, torch.Tensor):
        return array.cpu().contiguous().view(torch.int32 if array.itemsize == 4 else torch.int16).numpy()
    return np.ascontiguousarray(array).view(f"i{array.itemsize}")


@pytest.fixture
def compiled_triton_module(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """The module with compiled kernels."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")  # Triton 3.9 warns if it is unset; the kernel fuses nothing
    return import_triton_module(monkeypatch, interpret=False)


@pytest.fixture
def bits() -> Callable[[Any], np.ndarray]:
    return bits_of


@pytest.fixture
def restore(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Restore the replacement and the configuration after the test."""
    monkeypatch.setattr(implementations, "_replacement", None)
    monkeypatch.setattr(torch.version, "hip", None)
    yield
    ops.configure("all")
