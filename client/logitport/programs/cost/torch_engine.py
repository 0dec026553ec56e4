"""Times the operators of the runtime, on a CPU or a GPU. On a GPU this has not been run yet."""

from __future__ import annotations

import ctypes
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from logitport.core.history import History
from logitport.programs.cost.measurement import Engine, Measured, measure
from logitport.programs.cost.operands import MAX_ELEMENTS, Case, Operand, numbers
from logitport.programs.request_tokens import RequestTokens
from logitport.programs.runtime import tokens
from logitport.programs.runtime.kernels import KERNELS, Call, Spec
from logitport.programs.runtime.runner import Runner

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from logitport.programs.verifier import Verified

# Larger than the caches of one core.
_COPIED_BYTES = 8 << 20
# It loads the OpenMP that torch uses, of which a process may have others.
_LIBRARY = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"


def measure_torch(device: torch.device) -> Measured:
    """Measure the prices of a device, those of a CPU with one core.

    It runs in a thread that ends here, because a number of threads is that of a thread.
    """

    def alone() -> Measured:
        with _one_thread():
            return measure(TorchEngine(device))

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(alone).result()


@contextmanager
def _one_thread() -> Iterator[None]:
    """Compute with one thread in the calling thread, which must end afterwards.

    Not with `torch.set_num_threads` if that can be avoided: threads of the engine that begin meanwhile would keep one
    thread until they end.
    """
    threads = torch.get_num_threads()  # before the number is set: torch sets it at its first use in a thread
    try:
        ctypes.CDLL(str(_LIBRARY)).omp_set_num_threads(1)
    except (OSError, AttributeError):  # another system, or torch without OpenMP
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(threads)
    else:
        yield


class TorchEngine(Engine):
    """The runtime's operators on one device."""

    def __init__(self, device: torch.device) -> None:
        self.max_elements = MAX_ELEMENTS
        self._device = device
        self._operands: dict[tuple[str, str, int], torch.Tensor] = {}

    def prepare(self, case: Case, rows: int) -> Callable[[], object]:
        dtype = getattr(torch, case.dtype)
        if case.is_far:
            inputs = [self._far(one, rows) for one in case.operands]
            out = self._far(case.operands[0]._replace(dtype=case.dtype), rows)
        else:
            inputs = [self._operand(one, rows) for one in case.operands]
            out = torch.empty((rows, *case.shape), dtype=dtype, device=self._device)
        if case.value.operator == "scatter_drop":
            out = inputs[0]  # a copy is priced by its bytes
        begin, end = (size.constant if size else 0 for size in (case.value.begin, case.value.end))
        call, kernel = Call(case.value, begin, end), KERNELS[case.value.operator]
        specs = [Spec(tuple(one.shape), one.dtype) for one in inputs]
        scratch = [
            torch.empty(spec.shape, dtype=spec.dtype, device=self._device)
            for spec in kernel.scratch(call, specs, Spec((rows, *case.shape), dtype))
        ]
        return lambda: kernel.run(call, inputs, out, scratch)

    def prepare_source(self, operator: str, ids: int) -> Callable[[], object]:
        history = [RequestTokens(History(np.random.default_rng(0).permutation(ids).astype(np.int32)))]
        dtype = torch.bool if operator == "token_mask" else torch.int64
        out = torch.empty((1, ids), dtype=dtype, device=self._device)
        if operator == "parameter":
            listed = [list(range(ids))]
            return lambda: out.copy_(torch.tensor(listed, dtype=out.dtype))
        if operator == "history":
            return lambda: tokens.fill_history(history, out)
        fill = tokens.fill_mask if operator == "token_mask" else tokens.fill_counts
        return lambda: fill(history, out, generated=False)

    def prepare_copy(self) -> tuple[Callable[[], object], int]:
        source = torch.ones(_COPIED_BYTES, dtype=torch.uint8, device=self._device)
        out = torch.ones_like(source)
        return lambda: out.copy_(source), 2 * _COPIED_BYTES

    def prepare_run(self, verified: Verified) -> Callable[[], object]:
        runner, logits = Runner(), torch.ones(1, 1, device=self._device)
        return lambda: runner.apply(verified, logits, range(1))

    def nanoseconds(self, function: Callable[[], object], repeats: int) -> float:
        with torch.inference_mode():
            function()
            timed = self._on_gpu if self._device.type == "cuda" else self._on_cpu
            return min(timed(function) for _ in range(repeats))

    def _on_cpu(self, function: Callable[[], object]) -> float:
        begin = time.thread_time_ns()  # without the time of other threads and processes
        function()
        return float(time.thread_time_ns() - begin)

    def _on_gpu(self, function: Callable[[], object]) -> float:
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        begin.record()
        function()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) * 1e6

    def _operand(self, operand: Operand, rows: int) -> torch.Tensor:
        key = operand.numbers, operand.dtype, rows * operand.elements
        if key not in self._operands:
            self._operands[key] = self._made(*key)
        return self._operands[key].as_strided((rows, *operand.shape), (operand.elements, *operand.strides))

    def _far(self, operand: Operand, rows: int) -> torch.Tensor:
        """An operand in memory of its own, which the system provides only where there are elements."""
        dtype, strides = getattr(torch, operand.dtype), (operand.elements, *operand.strides)
        memory = torch.empty(rows * operand.elements, dtype=dtype, device=self._device)
        return memory.as_strided((rows, *operand.shape), strides).fill_(1)

    def _made(self, name: str, dtype: str, count: int) -> torch.Tensor:
        array: Any = numbers(name)
        if dtype == "bool":
            array = array > 0
        array = np.resize(array, count)
        return torch.from_numpy(array).to(device=self._device, dtype=getattr(torch, dtype))
