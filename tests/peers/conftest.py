"""SGLang's real classes, loaded from the files that `make test-peers` fetches."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

_MODULE = "sglang.srt.sampling.custom_logit_processor"


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
