"""The interface of vLLM's second runner, without its kernels: PYTHONPATH points to an unpacked wheel."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import vllm.utils.torch_utils

from logitport.integrations.vllm import failures
from logitport.integrations.vllm.failures import _kept

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conftest import RunningServer

vllm.utils.torch_utils.PIN_MEMORY = False


@pytest.fixture(autouse=True)
def target(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The service that hooks use; no failure is recorded."""
    monkeypatch.setenv("LOGITPORT_TARGET", server.target)
    _kept.clear()
    assert not failures()
    yield server.target
    _kept.clear()
