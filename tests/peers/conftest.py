"""Real classes of SGLang and vLLM, loaded from the files that `make test-peers` fetches."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from tests.peers.partial_package import PartialPackage

if TYPE_CHECKING:
    from collections.abc import Iterator

_MODULE = "sglang.srt.sampling.custom_logit_processor"
_SGLANG_PENALIZERS = [
    f"sglang.srt.sampling.penaltylib.{name}"
    for name in ("orchestrator", "frequency_penalty", "min_new_tokens", "presence_penalty", "repetition_penalty")
]
_VLLM_SAMPLING = [
    "vllm._custom_ops",
    "vllm.model_executor.layers.utils",
    "vllm.v1.sample.logits_processor.builtin",
    "vllm.v1.sample.logits_processor.interface",
    "vllm.v1.sample.ops.bad_words",
    "vllm.v1.sample.ops.topk_topp_sampler",
    "vllm.v1.sample.sampler",
]


@pytest.fixture(scope="session")
def sglang_processors() -> Iterator[ModuleType]:
    """SGLang's own `sglang.srt.sampling.custom_logit_processor`.

    Its packages are replaced by empty modules, so that only this file of SGLang runs. It needs only torch, dill and
    orjson.
    """
    folder = os.environ.get("LOGITPORT_SGLANG", "")
    if not Path(folder, *_MODULE.split(".")).with_suffix(".py").is_file():
        pytest.fail(
            "LOGITPORT_SGLANG must name the folder of an unpacked SGLang wheel (the one that holds `sglang/`), "
            f"but is {folder!r}; `make test-peers` fetches the wheel and sets the variable"
        )
    with pytest.MonkeyPatch.context() as patch:
        for name in ("sglang", "sglang.srt", "sglang.srt.sampling"):
            package = ModuleType(name)
            package.__path__ = [str(Path(folder, *name.split(".")))]
            patch.setitem(sys.modules, name, package)
        patch.delitem(sys.modules, _MODULE, raising=False)
        yield importlib.import_module(_MODULE)
        del sys.modules[_MODULE]


@pytest.fixture
def sglang_penalizers() -> Iterator[SimpleNamespace]:
    """SGLang's own modules of `sglang.srt.sampling.penaltylib`, by their last names."""
    yield from _imported("LOGITPORT_SGLANG", "sglang", _SGLANG_PENALIZERS)


@pytest.fixture
def vllm_sampling() -> Iterator[SimpleNamespace]:
    """The modules of vLLM that compute with logits, by their last names."""
    yield from _imported("LOGITPORT_VLLM", "vllm", _VLLM_SAMPLING)


def _imported(variable: str, package: str, modules: list[str]) -> Iterator[SimpleNamespace]:
    folder = Path(os.environ.get(variable, ""))
    if not folder.joinpath(package, "__init__.py").is_file():
        pytest.fail(
            f"{variable} must name the folder of an unpacked wheel (the one that holds `{package}/`), but is "
            f"{str(folder)!r}; `make test-peers` fetches the wheel and sets the variable"
        )
    for imported in PartialPackage(folder, package, modules).imported():
        yield SimpleNamespace(**{name.rpartition(".")[2]: module for name, module in imported.items()})
