"""Balancers that run with the configuration files of deploy/, in which only addresses and paths are replaced."""

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
    from collections.abc import Callable, Iterator, Sequence

    from tests.certificates import Authority

DEPLOY = Path(__file__).parents[2] / "deploy"
# Addresses in the files: that of the balancer, and those of the servers.
_ADDRESSES = ("127.0.0.1:50050", "10.0.0.1:50051", "10.0.0.2:50051")
_SECONDS = 60.0
# The name in the certificates of servers behind nginx.
SERVER_NAME = "logitport.internal"


def _haproxy(folder: Path, addresses: dict[str, str], authority: Authority) -> list[str]:
    path = folder / "haproxy.cfg"
    path.write_text(_replaced((DEPLOY / path.name).read_text(), addresses))
    return [_program("haproxy"), "-db", "-f", str(path)]


def _nginx(folder: Path, addresses: dict[str, str], authority: Authority) -> list[str]:
    # Debian's folders for temporary files belong to root.
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    temporary = "".join(f"\n    {kind}_temp_path {folder}/{kind};" for kind in kinds)
    others = {"/etc/nginx/logitport-ca.pem": str(authority.ca), "\nhttp {": f"\nhttp {{{temporary}"}
    path = folder / "nginx.conf"
    path.write_text(_replaced((DEPLOY / path.name).read_text(), {**addresses, **others}))
    return [_program("nginx"), "-e", "stderr", "-c", str(path), "-g", f"daemon off; pid {folder}/pid;"]


def _envoy(folder: Path, addresses: dict[str, str], authority: Authority) -> list[str]:
    def fields(address: str) -> str:
        host, port = address.split(":")
        return f"address: {host}, port_value: {port}"

    path = folder / "envoy.yaml"
    fields_of = {fields(old): fields(new) for old, new in addresses.items()}
    path.write_text(_replaced((DEPLOY / path.name).read_text(), fields_of))
    return [_program("envoy"), "-c", str(path), "--disable-hot-restart", "--concurrency", "1", "-l", "warning"]


BALANCERS: dict[str, Callable[[Path, dict[str, str], Authority], list[str]]] = {
    "haproxy": _haproxy,
    "nginx": _nginx,
    "envoy": _envoy,
}


@contextmanager
def run_balancer(name: str, folder: Path, servers: Sequence[str], authority: Authority) -> Iterator[str]:
    """Run a balancer in front of two servers while the context lasts. Yields its address."""
    listen = free_address()
    command = BALANCERS[name](folder, dict(zip(_ADDRESSES, (listen, *servers), strict=True)), authority)
    with subprocess.Popen(command) as process:
        try:
            with grpc.insecure_channel(listen) as channel:
                grpc.channel_ready_future(channel).result(_SECONDS)
            yield listen
        finally:
            process.terminate()
            process.wait(_SECONDS)


def server_options(name: str, authority: Authority) -> tuple[str, ...]:
    """The options of servers that the file of a balancer requires."""
    if name != "nginx":
        return ()
    files = authority.issue(SERVER_NAME)
    return ("--keepalive-seconds", "1", "--tls-cert", str(files.cert), "--tls-key", str(files.key))


def find_program(name: str) -> str | None:
    """Path of a program, in the folder of the interpreter or on the path; None if it is not installed."""
    return shutil.which(name, path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"], "/usr/sbin"]))


def _program(name: str) -> str:
    """Path of a program. Skips the test where it is not installed."""
    return find_program(name) or pytest.skip(f"{name} is not installed")


def _replaced(text: str, replacements: dict[str, str]) -> str:
    for old, new in replacements.items():
        assert text.count(old) == 1, f"{old} occurs {text.count(old)} times"
        text = text.replace(old, new)
    return text
