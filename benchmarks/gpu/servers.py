"""Servers of the jobs, with the layers of the sandbox that this machine has, and sessions on them."""

from __future__ import annotations

import re
import tempfile
import urllib.request
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from logitport import Client
from logitport_server.access import new_token
from tests.conftest import run_server

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conftest import RunningServer

SHIPPED_HERE = ("--isolation", "none")  # in a sandbox, a processor gets a copy of its rows
_ALWAYS = ("--enable-custom-logit-processor", "--metrics-listen", "127.0.0.1:0", "--log-level", "info")
_TIMEOUT_SECONDS = 60.0


@contextmanager
def connected(device: str, *options: str) -> Iterator[tuple[RunningServer, Client]]:
    """Run a server on a device, on which any client has all scopes, and connect a client."""
    with (
        run_server("--device", device, *_ALWAYS, *options) as server,
        Client(server.target, timeout=_TIMEOUT_SECONDS) as client,
    ):
        yield server, client


@contextmanager
def connected_with(scopes: list[str], device: str, *options: str) -> Iterator[tuple[RunningServer, Client]]:
    """Run a server that authenticates, and connect a client with these scopes."""
    token, grant = new_token("engine", scopes)
    with tempfile.TemporaryDirectory() as folder:
        tokens = Path(folder, "tokens")
        tokens.write_text(grant.line + "\n")
        with (
            run_server("--device", device, "--tokens", str(tokens), *_ALWAYS, *options) as server,
            Client(server.target, token=token, timeout=_TIMEOUT_SECONDS) as client,
        ):
            yield server, client


def worker_calls(server: RunningServer) -> dict[str, float]:
    """The number of calls of workers, by the memory of their rows."""
    page = urllib.request.urlopen(server.metrics_url).read().decode()
    found = re.findall(r'logitport_worker_logits_total{memory="(\w+)"} (\S+)', page)
    return {memory: float(number) for memory, number in found}
