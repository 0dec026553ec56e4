"""Compiles programs for tests, in this process."""

from __future__ import annotations

import functools
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from logitport.programs.fused.compiler import compile_to, find_compiler
from logitport.programs.fused.native import Native
from logitport.programs.fused.phases import phases_of
from logitport.programs.fused.source import source_of

if TYPE_CHECKING:
    import torch

    from logitport.programs.fused.compiler import Compiler
    from logitport.programs.verifier import Verified

needs_compiler = pytest.mark.skipif(
    sys.platform != "linux" or not any(shutil.which(name) for name in ("c++", "g++", "clang++")),
    reason="no C++ compiler is installed, or this is not Linux",
)


@functools.cache
def _compiler() -> Compiler:
    compiler = find_compiler()
    assert compiler is not None
    return compiler


def compiled(verified: Verified) -> Native:
    """The function of a program. Raises NotFusible."""
    source = source_of(phases_of(verified))
    with tempfile.TemporaryDirectory() as folder:
        compile_to(_compiler(), source, Path(folder) / "program.so")
        return Native(Path(folder) / "program.so")


class Ready:
    """Has the function of each program at once, instead of `Fusing`."""

    def __init__(self) -> None:
        self._natives: dict[str, Native] = {}

    def find(self, verified: Verified, logits: torch.Tensor, threads: int) -> Native:
        digest = verified.program.digest
        if digest not in self._natives:
            self._natives[digest] = compiled(verified)
        return self._natives[digest]
