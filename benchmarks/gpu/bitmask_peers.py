"""Kernels that apply bitmasks: xgrammar's in Triton and in CUDA, and that of vLLM's second runner.

Each peer is opened with the words, int32[rows, words], and the logits. It raises Missing where it cannot be measured.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar
from unittest.mock import patch

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.peer_files import Missing, folder_of

_VLLM = "vllm.v1.worker.gpu.structured_outputs"


class BitmaskPeer:
    """One peer.

    Attributes:
        name: name in the results.
    """

    name: ClassVar[str]

    def __init__(self, words: NDArray[np.int32], logits: torch.Tensor) -> None:
        self._logits = logits
        self._pinned = torch.from_numpy(words.copy())
        if logits.is_cuda:
            self._pinned = self._pinned.pin_memory()
        self._on_device = self._pinned.to(logits.device)

    def apply(self) -> None:
        """Copy the words to the device, and apply them, as an engine does."""
        raise NotImplementedError

    def kernel(self) -> None:
        """Apply words that are on the device."""
        raise NotImplementedError


class XGrammar(BitmaskPeer):
    """xgrammar, with the kernel that it chooses for the device: Triton on a GPU."""

    name = "xgrammar"
    backend = "auto"

    def __init__(self, words: NDArray[np.int32], logits: torch.Tensor) -> None:
        super().__init__(words, logits)
        try:
            import xgrammar
        except ImportError as error:
            raise Missing(f"xgrammar cannot be imported: {error}") from error
        self._xgrammar = xgrammar
        self.kernel()

    def apply(self) -> None:
        self._apply(self._pinned.to(self._logits.device, non_blocking=True))

    def kernel(self) -> None:
        self._apply(self._on_device)

    def _apply(self, words: torch.Tensor) -> None:
        self._xgrammar.apply_token_bitmask_inplace(self._logits, words, backend=self.backend)


class XGrammarCuda(XGrammar):
    """xgrammar, with its kernel in CUDA, which nvcc compiles first."""

    name = "xgrammar in CUDA"
    backend = "cuda"

    def __init__(self, words: NDArray[np.int32], logits: torch.Tensor) -> None:
        if not logits.is_cuda:
            raise Missing("xgrammar's kernel in CUDA needs a GPU")
        super().__init__(words, logits)


class VLLM(BitmaskPeer):
    """vLLM's second runner: its class copies on a stream of its own, and launches its kernel in Triton."""

    name = "vLLM"

    def __init__(self, words: NDArray[np.int32], logits: torch.Tensor) -> None:
        if not logits.is_cuda:
            raise Missing("vLLM's kernel needs a GPU")
        super().__init__(words, logits)
        rows, vocab_size = logits.shape
        self._module = import_vllm()
        self._worker = self._module.StructuredOutputsWorker(rows, vocab_size, logits.device, 1)
        self._words = self._pinned.numpy()
        self._req_ids = [str(row) for row in range(rows)]
        starts = np.arange(rows + 1, dtype=np.int32)
        self._batch = SimpleNamespace(
            req_ids=self._req_ids,
            cu_num_logits=torch.from_numpy(starts).to(logits.device),
        )
        self.apply()

    def apply(self) -> None:
        self._worker.apply_grammar_bitmask(self._logits, self._batch, self._req_ids, self._words)

    def kernel(self) -> None:
        rows, vocab_size = self._logits.shape
        block = self._module.GRAMMAR_BITMASK_BLOCK_SIZE
        self._module._apply_grammar_bitmask_kernel[rows, -(-vocab_size // block)](
            self._logits,
            self._logits.stride(0),
            self._worker.logits_indices,
            self._batch.cu_num_logits,
            self._on_device,
            self._on_device.stride(0),
            vocab_size,
            MASK_STRIDE=1,
            BLOCK_SIZE=block,
        )


PEERS: tuple[type[BitmaskPeer], ...] = (XGrammar, XGrammarCuda, VLLM)


def import_vllm() -> Any:
    """Import vLLM's module of bitmasks from its file alone. Raises Missing."""
    import triton
    import triton.language

    from tests.peers.partial_package import PartialPackage

    folder = folder_of("LOGITPORT_VLLM")
    language = ModuleType("vllm.triton_utils")
    language.triton, language.tl = triton, triton.language  # type: ignore[attr-defined]
    with patch.dict(sys.modules, {"vllm.triton_utils": language}):
        imported = contextmanager(PartialPackage(folder, "vllm", [_VLLM]).imported)
        with imported() as modules:
            module: Any = modules[_VLLM]
    # Imports of the file from vLLM, which is replaced by mocks above.
    module.cdiv = lambda count, size: -(-count // size)
    module.PIN_MEMORY = torch.cuda.is_available()
    module.async_tensor_h2d = _copy_to_device
    return module


def _copy_to_device(source: Any, *, out: torch.Tensor) -> torch.Tensor:
    return out.copy_(torch.from_numpy(source), non_blocking=True)
