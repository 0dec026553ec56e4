"""The interface of vLLM's second runner, without its kernels: PYTHONPATH points to an unpacked wheel."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import vllm.utils.torch_utils

if TYPE_CHECKING:
    from tests.conftest import RunningServer

vllm.utils.torch_utils.PIN_MEMORY = False


@pytest.fixture(autouse=True)
def target(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> str:
    """The service that hooks use."""
    monkeypatch.setenv("LOGITPORT_TARGET", server.target)
    return server.target
