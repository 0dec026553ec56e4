"""Addresses that a server listens on, and those that it refuses to expose."""

from __future__ import annotations

import os
import stat
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
import torch

from logitport import Client, Request
from logitport_server.access import new_token
from tests.conftest import COMMAND, environment

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import RunningServer
    from tests.certificates import Authority

VOCAB = 8


def error_at_start(*options: str) -> str:
    done = subprocess.run(
        [COMMAND, "serve", "--device", "cpu", *options],
        check=False,
        capture_output=True,
        text=True,
        timeout=200,
        env=environment(),
    )
    assert (done.returncode, done.stdout) == (1, ""), done
    return done.stderr


@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0", "10.1.2.3:50051", "example.com:50051"])
def test_public_addresses_require_authentication(address: str) -> None:
    message = error_at_start("--listen", address)
    assert message.startswith(f"logitport: --listen {address} can be reached from other machines")
    assert "give --tokens FILE or --tls-client-ca FILE, or listen on 127.0.0.1 or unix:PATH" in message


def test_encryption_alone_is_not_enough(authority: Authority) -> None:
    pair = authority.issue_server("alone")
    message = error_at_start("--listen", "0.0.0.0:0", "--tls-cert", str(pair.cert), "--tls-key", str(pair.key))
    assert "but authentication is off" in message


def test_tokens_without_encryption_are_warned_about(start_server: Callable[..., RunningServer], tmp_path: Path) -> None:
    token, grant = new_token("alice", ["apply"])
    tokens = tmp_path / "tokens"
    tokens.write_text(grant.line)
    running = start_server("--listen", "0.0.0.0:0", "--tokens", str(tokens), "--metrics-listen", "0.0.0.0:0")
    assert "tokens are sent to --listen 0.0.0.0:0 unencrypted" in running.log.read_text()
    assert "--metrics-listen 0.0.0.0:0 shows any client that can reach it" in running.log.read_text()
    with Client(running.target.replace("0.0.0.0", "127.0.0.1"), token=token) as client:
        assert client.processors()


def test_invalid_files(tmp_path: Path, authority: Authority) -> None:
    pair, empty = authority.issue_server("right"), tmp_path / "empty"
    empty.touch()
    missing = str(tmp_path / "missing")
    other = authority.issue_server("other")
    assert f"cannot read {missing}: No such file" in error_at_start("--tls-cert", missing, "--tls-key", str(pair.key))
    for key in (empty, other.key):
        message = error_at_start("--tls-cert", str(pair.cert), "--tls-key", str(key))
        assert f"--tls-key {key} are not a PEM certificate and its key" in message
    right = ("--tls-cert", str(pair.cert), "--tls-key", str(pair.key))
    assert f"--tls-client-ca {empty} contains no PEM certificate" in error_at_start(
        *right, "--tls-client-ca", str(empty)
    )
    tokens = tmp_path / "tokens"
    tokens.write_text('\n{"name": "alice"}')
    assert f"logitport: --tokens {tokens}, line 2: scopes: Field required" in error_at_start("--tokens", str(tokens))


def step(client: Client, transport: Any) -> None:
    with client.session(vocab_size=VOCAB, dtype=torch.float32, transport=transport) as session:
        handle = session.add(Request([1], processors=[("disallowed_tokens", {"token_ids": [2]})]))
        logits = torch.zeros(1, VOCAB)
        session.step({handle: []}).apply(logits)
        assert logits[0, 2] == float("-inf")


def test_a_unix_socket(start_server: Callable[..., RunningServer], tmp_path: Path) -> None:
    path = tmp_path / "lp.sock"
    before = os.umask(0)
    try:
        running = start_server("--listen", f"unix:{path}")
    finally:
        os.umask(before)
    assert running.target == f"unix:{path}"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600, "its owner's alone, whatever the umask"
    with Client(running.target, token="nobody-asks") as client:
        for transport in ("grpc", "local"):
            step(client, transport)
    assert f"another server listens on {path}" in error_at_start("--listen", f"unix:{path}")
    running.process.kill()
    running.process.wait()
    assert path.exists(), "a server that is killed leaves it there"
    again = start_server("--listen", f"unix:{path}")
    with Client(again.target) as client:
        step(client, "auto")


def test_a_path_that_is_not_a_socket(tmp_path: Path) -> None:
    taken = tmp_path / "file"
    taken.write_text("precious")
    assert f"{taken} is not a socket" in error_at_start("--listen", f"unix:{taken}")
    assert taken.read_text() == "precious"
    assert "choose another one with --listen" in error_at_start("--listen", f"unix:{tmp_path}/no/such/folder")
