"""The choice of the executor, and its messages at start-up."""

from __future__ import annotations

import logging
import re
import sys
from typing import TYPE_CHECKING, Any

import pytest
import torch

from logitport_server.config import ServerConfig, StartupError
from logitport_server.executors import InlineExecutor, factory
from logitport_server.sandbox import NotContained, SandboxError
from logitport_server.worker import start
from logitport_session.principals import Party, TrustDomain

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import RunningServer


def test_a_server_without_shipped_processors_has_no_workers() -> None:
    config = ServerConfig()
    assert config.isolation == "process"
    assert isinstance(factory.choose_executor(config), InlineExecutor)
    assert factory.announce(config) == "refused"


def test_no_isolation_is_logged_as_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    config = ServerConfig(enable_custom_logit_processor=True, isolation="none")
    assert isinstance(factory.choose_executor(config), InlineExecutor)
    with caplog.at_level(logging.WARNING):
        assert "in this process" in factory.announce(config)
    assert "can run code as this server's user" in caplog.text


SANDBOXED = ServerConfig(enable_custom_logit_processor=True)
CUDA_0 = torch.device("cuda", 0)


@pytest.fixture
def fake_cuda(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A GPU that CUDA reports on this machine."""
    cuda: Any = type("Cuda", (), {"device": CUDA_0})()
    monkeypatch.setattr(factory, "open_cuda", lambda device: cuda)
    monkeypatch.setattr(factory, "device_nodes", lambda: ("/dev/nvidia0", "/dev/nvidiactl"))
    return cuda


def test_the_scope_grants_the_gpu(fake_cuda: Any) -> None:
    gpu = factory.gpu_for_workers(SANDBOXED, CUDA_0, lambda name, scope: (name, scope) == ("alice", "cuda"))
    assert gpu is not None
    assert (gpu.cuda, gpu.nodes) == (fake_cuda, ("/dev/nvidia0", "/dev/nvidiactl"))
    assert gpu.granted(TrustDomain("alice", Party("engine")))
    assert gpu.granted(TrustDomain("alice", Party("engine", "a tenant")))
    assert not gpu.granted(TrustDomain("bob", Party("engine")))
    assert not gpu.granted(None)


@pytest.mark.parametrize(
    ("config", "device"),
    [
        (SANDBOXED, torch.device("cpu")),
        (ServerConfig(), CUDA_0),
        (ServerConfig(enable_custom_logit_processor=True, isolation="none"), CUDA_0),
    ],
)
def test_configurations_without_fake_cuda_for_workers(
    fake_cuda: Any, config: ServerConfig, device: torch.device
) -> None:
    assert factory.gpu_for_workers(config, device, lambda *_: True) is None


def test_fake_cuda_that_workers_cannot_hold_is_logged(
    fake_cuda: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(factory, "device_nodes", lambda: ())
    gpu = factory.gpu_for_workers(SANDBOXED, CUDA_0, lambda *_: True)
    assert gpu is not None, "it still pins the host memory through which rows are copied"
    assert gpu.nodes == ()
    assert "no worker will hold cuda:0, even with the scope cuda: it has no device nodes" in caplog.text
    assert "hold" not in factory.announce(SANDBOXED, gpu)
    monkeypatch.setattr(factory, "open_cuda", lambda device: None)
    assert factory.gpu_for_workers(SANDBOXED, CUDA_0, lambda *_: True) is None
    assert "cuda-bindings" in caplog.text


def test_the_holders_of_the_gpu_are_logged(fake_cuda: Any, tmp_path: Path) -> None:
    gpu = factory.gpu_for_workers(SANDBOXED, CUDA_0, lambda *_: True)
    announcement = factory.announce(SANDBOXED, gpu)
    assert "processes of all authors (authentication is off) hold cuda:0" in announcement
    assert "cannot be fully contained" in announcement
    with_authentication = ServerConfig(enable_custom_logit_processor=True, tokens=tmp_path / "tokens")
    assert "processes of authors with the scope cuda hold cuda:0" in factory.announce(with_authentication, gpu)


def test_processors_that_are_not_contained_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def contain(pythons: Any, *, without: Any, required: Any) -> frozenset[str]:
        assert (list(pythons), without, required) == ([sys.executable], ["limits"], ["seccomp"])
        raise NotContained("these attempts got through:\n  Read the host's files")

    monkeypatch.setattr(start, "contain", contain)
    config = ServerConfig(enable_custom_logit_processor=True, layers=["limits=off", "seccomp=required"])
    with pytest.raises(
        StartupError, match=r"(?s)host's files.*--isolation none runs them in the processes of their callers"
    ):
        factory.choose_executor(config)


def test_every_interpreter_of_workers_is_probed(monkeypatch: pytest.MonkeyPatch) -> None:
    def contain(pythons: Any, **_: Any) -> frozenset[str]:
        raise SandboxError(" ".join(pythons))

    monkeypatch.setattr(start, "contain", contain)
    config = ServerConfig(enable_custom_logit_processor=True, worker_python=["3.12=/a/python3.12"])
    with pytest.raises(StartupError, match=f"{re.escape(sys.executable)} /a/python3.12$"):
        factory.choose_executor(config)


def test_a_python_that_cannot_run_workers(start_server: Callable[..., RunningServer]) -> None:
    with pytest.raises(AssertionError, match=r"/nowhere/python.* cannot run workers.*; install logitport"):
        start_server("--enable-custom-logit-processor", "--worker-python", "3.12=/nowhere/python")
