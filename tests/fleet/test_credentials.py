"""A token and TLS with several servers: all of them get the token, and all certificates are verified."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from logitport import AccessDenied, ServerUnavailable
from logitport.integrations.common import environment
from logitport.servers.connection import TOKEN_VARIABLE
from logitport_server.access import new_token
from tests.end_to_end.engines import Engine, kill, start_together

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.certificates import Authority
    from tests.conftest import RunningServer

NAME = "servers.example"


def test_an_engine_moves_with_its_token_and_the_name_of_the_servers(
    start_server: Callable[..., RunningServer], authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The certificates have a common name, and not the IP addresses of the list."""
    token, grant = new_token("engine", ["apply"])
    tokens = tmp_path / "tokens"
    tokens.write_text(grant.line)
    files = authority.issue(NAME)
    options = ("--tokens", str(tokens), "--tls-cert", str(files.cert), "--tls-key", str(files.key))
    cluster = start_together(start_server, [("--no-entry-points", *options)] * 2)
    monkeypatch.setenv(environment.TARGET, ",".join(server.target for server in cluster))
    monkeypatch.setenv(environment.TLS, str(authority.ca))
    monkeypatch.setenv(TOKEN_VARIABLE, token)
    with environment.client() as client, pytest.raises(ServerUnavailable, match="certificate"):
        client.session(vocab_size=8)
    monkeypatch.setenv(environment.SERVER_NAME, NAME)
    with environment.client() as client:
        engines = [Engine(client, seed) for seed in range(4)]
        for server in (None, cluster[0]):
            if server is not None:
                kill(server)
            for engine in engines:
                for _ in range(10):
                    engine.step()
        assert [engine.wrong for engine in engines] == [0] * 4
        assert sum(engine.session.reconnects for engine in engines) >= 1
        assert client.processors()
    monkeypatch.setenv(TOKEN_VARIABLE, "another")
    with environment.client() as client, pytest.raises(AccessDenied):
        client.session(vocab_size=8)
