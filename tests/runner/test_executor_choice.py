"""The choice of the executor."""

from __future__ import annotations

import re
import sys
from typing import Any

import pytest

from logitport_runner import executor_choice
from logitport_sandbox import NotContained, SandboxError
from logitport_server.config import ServerConfig
from logitport_server.executors.inline import InlineExecutor
from logitport_server.lifecycle.start_errors import StartupError
from logitport_server.worker import start


@pytest.mark.parametrize("options", [{}, {"enable_custom_logit_processor": True, "isolation": "none"}])
def test_configurations_without_workers(options: dict[str, Any]) -> None:
    assert isinstance(executor_choice.choose_executor(ServerConfig(**options)), InlineExecutor)


def test_processors_that_are_not_contained_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def contain(pythons: Any, *, without: Any, required: Any) -> frozenset[str]:
        assert (list(pythons), without, required) == ([sys.executable], ["limits"], ["seccomp"])
        raise NotContained("these attempts got through:\n  Read the host's files")

    monkeypatch.setattr(start, "contain", contain)
    config = ServerConfig(enable_custom_logit_processor=True, layers=["limits=off", "seccomp=required"])
    with pytest.raises(StartupError, match=r"(?s)host's files.*--isolation none"):
        executor_choice.choose_executor(config)


def test_every_interpreter_of_workers_is_probed(monkeypatch: pytest.MonkeyPatch) -> None:
    def contain(pythons: Any, **_: Any) -> frozenset[str]:
        raise SandboxError(" ".join(pythons))

    monkeypatch.setattr(start, "contain", contain)
    config = ServerConfig(enable_custom_logit_processor=True, worker_python=["3.12=/a/python3.12"])
    with pytest.raises(StartupError, match=f"{re.escape(sys.executable)} /a/python3.12$"):
        executor_choice.choose_executor(config)
