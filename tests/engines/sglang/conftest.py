"""Real SGLang servers on a CPU, each in its own processes."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.conftest import environment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from tests.conftest import RunningServer

# SGLang starts in half a minute, and more slowly on a busy machine.
_START_SECONDS = 600.0
_STUBS = Path(__file__).with_name("stubs")
_OPTIONS = {
    "--device": "cpu",
    "--attention-backend": "torch_native",
    "--sampling-backend": "pytorch",
    "--grammar-backend": "none",
    "--dtype": "float32",
    "--mem-fraction-static": "0.5",  # of what is free at the start, before other processes take some
    "--max-running-requests": "8",
    "--max-total-tokens": "4096",
}
# Drafts of ids that followed the same ids before, on a CPU with stand-ins for the kernels that SGLang lacks there.
MAX_DRAFTS = 5
NGRAM = ("--speculative-algorithm", "NGRAM", "--speculative-num-draft-tokens", str(1 + MAX_DRAFTS))
KERNELS = {
    "SGLANG_USE_CPU_ENGINE": "1",
    "PYTHONPATH": os.pathsep.join([str(_STUBS), str(_STUBS.with_name("kernels"))]),
}
PLAIN, GUARDED = "sglang.launch_server", "logitport.integrations.sglang.launcher"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.timeout(1500))


class Refused(Exception):
    """SGLang answered with an error.

    Attributes:
        status: of HTTP.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass
class Engine:
    """A running SGLang server.

    Attributes:
        url: its address.
        log: the file with its output.
    """

    url: str
    log: Path

    def generate(self, prompt: list[int], processor: str | None = None, custom: Any = None, **params: Any) -> list[int]:
        """Return the ids that follow the prompt, greedily. Raises Refused."""
        return self.answer(prompt, processor, custom, **params)["output_ids"]

    def answer(self, prompt: list[int], processor: str | None = None, custom: Any = None, **params: Any) -> Any:
        """Return SGLang's whole response for the prompt. Raises Refused."""
        with self.post(prompt, processor, custom, **params) as response:
            return json.load(response)

    def post(
        self,
        prompt: list[int],
        processor: str | None,
        custom: Any,
        *,
        stream: bool = False,
        extra_fields: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        **params: Any,
    ) -> Any:
        """Return the response of /generate; `extra_fields` are added to the body. Raises Refused."""
        params = {"temperature": 0, "max_new_tokens": 64, "ignore_eos": True, "custom_params": custom, **params}
        body = {"input_ids": prompt, "sampling_params": params, "stream": stream, "custom_logit_processor": processor}
        body |= extra_fields or {}
        request = urllib.request.Request(
            f"{self.url}/generate", json.dumps(body).encode(), {"Content-Type": "application/json", **(headers or {})}
        )
        try:
            return urllib.request.urlopen(request, timeout=120)
        except urllib.error.HTTPError as error:
            with error:
                raise Refused(error.code, error.read().decode()) from None


@contextmanager
def run_sglang(module: str, checkpoint: Path, log: Path, *options: str, **variables: str) -> Iterator[Engine]:
    """Run a server while the context is open."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    given = [part for name, value in _OPTIONS.items() if name not in options for part in (name, value)]
    given += ["--model-path", str(checkpoint), "--port", str(port), "--skip-server-warmup", "--sleep-on-idle", *options]
    offline = {"HF_HUB_OFFLINE": "1", "PYTHONPATH": str(_STUBS)}
    shipped = {"LOGITPORT_REQUEST_PROCESSORS": "builtin,registered,shipped"}
    with log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", module, *given],
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment() | offline | shipped | variables,
            cwd=log.parent,
        )
    engine = Engine(f"http://127.0.0.1:{port}", log)
    try:
        _await(engine, process)
        yield engine
    finally:
        _kill(process)


def _await(engine: Engine, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while True:
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"SGLang did not start: {engine.log.read_text()[-5000:]}")
        try:
            urllib.request.urlopen(f"{engine.url}/model_info", timeout=5).close()
        except OSError:
            time.sleep(0.5)
        else:
            return


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill the process and its descendants."""
    import psutil  # comes with SGLang

    try:
        family = psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        family = []
    for member in family:
        try:
            member.kill()
        except psutil.NoSuchProcess:
            continue
    process.kill()
    process.wait()


@pytest.fixture(scope="session")
def sglang(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., AbstractContextManager[Engine]]:
    """Run a server: module, options, and environment variables by keyword."""

    def run(module: str, *options: str, **variables: str) -> AbstractContextManager[Engine]:
        return run_sglang(module, checkpoint, tmp_path_factory.mktemp("sglang") / "log", *options, **variables)

    return run


@pytest.fixture(scope="session")
def native(sglang: Callable[..., AbstractContextManager[Engine]]) -> Iterator[Engine]:
    """SGLang without logitport: it runs processors itself."""
    with sglang(PLAIN, "--enable-custom-logit-processor", "--disable-overlap-schedule") as engine:
        yield engine


@pytest.fixture(scope="session")
def guarded(sglang: Callable[..., AbstractContextManager[Engine]], server: RunningServer) -> Iterator[Engine]:
    """SGLang started by logitport's launcher, with the overlap schedule on."""
    with sglang(GUARDED, LOGITPORT_TARGET=server.target) as engine:
        yield engine


@pytest.fixture(scope="session")
def drafting(sglang: Callable[..., AbstractContextManager[Engine]], server: RunningServer) -> Iterator[Engine]:
    """SGLang with drafts, started by logitport's launcher."""
    with sglang(GUARDED, *NGRAM, LOGITPORT_TARGET=server.target, **KERNELS) as engine:
        yield engine
