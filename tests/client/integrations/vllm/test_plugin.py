"""vLLM's plugin: an engine with a wrong variable ends before it loads the model."""

from __future__ import annotations

import re
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from logitport.errors import InvalidArgument
from logitport.integrations.vllm import plugin

PROCESSOR = "logitport.integrations.vllm:RemoteLogitsProcessor"
OURS = type("RemoteLogitsProcessor", (), {"__module__": "logitport.integrations.vllm.processor"})


class EngineArgs:
    """The part of vLLM's class that is used."""

    def __init__(self, *logits_processors: Any) -> None:
        self.logits_processors = list(logits_processors) or None

    def create_engine_config(self, usage_context: str | None = None) -> str:
        return f"the configuration for {usage_context}"


class AsyncEngineArgs(EngineArgs):
    pass


@pytest.fixture(autouse=True)
def vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("vllm.engine.arg_utils")
    module.EngineArgs = EngineArgs  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(EngineArgs, "create_engine_config", EngineArgs.create_engine_config)
    monkeypatch.delenv("LOGITPORT_TARGET", raising=False)


@pytest.mark.parametrize("processor", [PROCESSOR, OURS])
def test_a_missing_folder_ends_vllm_before_the_model_is_loaded(
    processor: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("LOGITPORT_TARGET", f"embedded:{tmp_path}/none")
    plugin.install()
    with pytest.raises(InvalidArgument, match="is no folder"):
        AsyncEngineArgs(processor).create_engine_config()


def test_an_invalid_default_chain_ends_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGITPORT_TARGET", "127.0.0.1:1")
    monkeypatch.setenv("LOGITPORT_DEFAULT_PROCESSORS", "{}")
    plugin.install()
    with pytest.raises(InvalidArgument, match="LOGITPORT_DEFAULT_PROCESSORS"):
        AsyncEngineArgs(PROCESSOR).create_engine_config()


@pytest.mark.parametrize("target", ["", "127.0.0.1:1"])
@pytest.mark.parametrize("processors", [(), ("another.package:Processor",), (PROCESSOR,)])
def test_vllm_starts_with_and_without_a_target(
    processors: tuple[str, ...], target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOGITPORT_TARGET", target)
    plugin.install()
    first = EngineArgs.create_engine_config
    plugin.install()  # vLLM does so
    assert EngineArgs.create_engine_config is first
    assert AsyncEngineArgs(*processors).create_engine_config(usage_context="all") == "the configuration for all"


def test_a_process_without_engine_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "vllm.engine.arg_utils")
    plugin.install()


def test_the_package_registers_it() -> None:
    text = (Path(__file__).parents[4] / "pyproject.toml").read_text()
    (module, function) = re.findall(r'"vllm\.general_plugins"\]\nlogitport = "(.+):(.+)"', text)[0]
    assert getattr(import_module(module), function) is plugin.install
