"""vLLM's HTTP server, with the engine in a process of its own, and a client of it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tests.engines.vllm.conftest import PROCESSOR

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

_START_SECONDS = 300.0
_OPTIONS = ("--host", "127.0.0.1", "--dtype", "float32", "--enforce-eager", "--max-model-len", "256")


@contextmanager
def run_http_server(checkpoint: Path, log: Path, variables: Mapping[str, str], *options: str) -> Iterator[str]:
    """Run a server with the hook while the context lasts, and return its address.

    Args:
        checkpoint: the model.
        log: the file for the server's output.
        variables: environment variables; an empty one is unset.
        options: further options.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(checkpoint)]
    command += ["--port", str(port), *_OPTIONS, "--logits-processors", PROCESSOR, *options]
    environment = {name: value for name, value in os.environ.items() if name != "VLLM_ENABLE_V1_MULTIPROCESSING"}
    environment = {name: value for name, value in (environment | dict(variables)).items() if value}
    with log.open("w") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, env=environment)
    url = f"http://127.0.0.1:{port}"
    with process:
        try:
            _wait_for(f"{url}/health", process, log)
            yield url
        finally:
            process.terminate()


def _wait_for(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except OSError:
            time.sleep(1)
    raise AssertionError(log.read_text()[-4000:])


def stream(url: str, headers: Mapping[str, str] | None = None, **options: Any) -> Any:
    """Return the response of one completion that is streamed, while it arrives. Raises HTTPError."""
    return urllib.request.urlopen(_request(url, headers, {"stream": True, **options}), timeout=400)


def post(url: str, headers: Mapping[str, str] | None = None, **options: Any) -> tuple[int, str]:
    """Return the status and the text of one completion."""
    try:
        with urllib.request.urlopen(_request(url, headers, options), timeout=120) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def complete(url: str, headers: Mapping[str, str] | None = None, **options: Any) -> tuple[int, Any]:
    """Return the status and the body of one completion that is not streamed."""
    status, text = post(url, headers, **options)
    return status, json.loads(text)


def _request(url: str, headers: Mapping[str, str] | None, options: Mapping[str, Any]) -> urllib.request.Request:
    with urllib.request.urlopen(f"{url}/v1/models", timeout=60) as answer:
        model = json.load(answer)["data"][0]["id"]
    body = {"model": model, "prompt": [5, 6, 7], "temperature": 0, "max_tokens": 12, "return_token_ids": True}
    sent = {"Content-Type": "application/json", **(headers or {})}
    return urllib.request.Request(f"{url}/v1/completions", json.dumps({**body, **options}).encode(), sent)
