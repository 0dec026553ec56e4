"""Envoy with the file of deploy/, in which only addresses are replaced."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import pytest

from tests.conftest import free_address

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_FILE = Path(__file__).parents[2] / "deploy/envoy.yaml"
# Addresses in the file: that of the balancer, and those of the servers.
_ADDRESSES = ("127.0.0.1:50050", "10.0.0.1:50051", "10.0.0.2:50051")
_SECONDS = 60.0


@contextmanager
def run_envoy(folder: Path, servers: Sequence[str]) -> Iterator[str]:
    """Run Envoy in front of two servers while the context lasts. Yields its address. Skips if it is not installed."""
    program = find_envoy() or pytest.skip("envoy is not installed")
    listen = free_address()
    text = _FILE.read_text()
    for old, new in zip(_ADDRESSES, (listen, *servers), strict=True):
        assert text.count(_fields(old)) == 1
        text = text.replace(_fields(old), _fields(new))
    path = folder / _FILE.name
    path.write_text(text)
    command = [program, "-c", str(path), "--disable-hot-restart", "--concurrency", "1", "-l", "warning"]
    with subprocess.Popen(command) as process:
        try:
            with grpc.insecure_channel(listen) as channel:
                grpc.channel_ready_future(channel).result(_SECONDS)
            yield listen
        finally:
            process.terminate()
            process.wait(_SECONDS)


def find_envoy() -> str | None:
    """Path of Envoy, in the folder of the interpreter or on the path; None if it is not installed."""
    return shutil.which("envoy", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))


def _fields(address: str) -> str:
    host, port = address.split(":")
    return f"address: {host}, port_value: {port}"
