"""Health and load of a real server."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
import pytest

from logitport import Client, Request
from logitport_server.fleet.probe import Probe, ServerLoad, parse_load
from tests.certificates import Authority
from tests.conftest import free_address

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import RunningServer


def test_a_server_with_a_session(server: RunningServer, client: Client) -> None:
    metrics = re.sub(r"http://(.*)/metrics", r"\1", server.metrics_url)
    probe = Probe(server.target, metrics)
    try:
        assert probe.is_serving()
        before = probe.load()
        assert before is not None
        with client.session(vocab_size=8, dtype="float32") as session:
            handle = session.add(Request([1], processors=[("disallowed_tokens", {"token_ids": [1]})]))
            for _ in range(5):
                session.step({handle: [2]}).apply(np.zeros((1, 8), np.float32))
            after = probe.load()
        assert after is not None
        assert after.sessions == before.sessions + 1
        assert after.steps >= before.steps + 5
        assert after.step_seconds > before.step_seconds
    finally:
        probe.close()


@pytest.mark.slow
def test_a_server_that_requires_certificates_and_tokens(
    start_server: Callable[..., RunningServer], tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    files, tokens, health = authority.issue_server(), tmp_path / "tokens", free_address()
    tokens.touch()
    options = {"--tls-cert": files.cert, "--tls-key": files.key, "--tls-client-ca": authority.ca, "--tokens": tokens}
    server = start_server("--health-listen", health, *(str(part) for option in options.items() for part in option))
    probe = Probe(health, free_address())
    assert probe.is_serving()
    server.stop()
    assert not probe.is_serving()
    probe.close()


def test_no_server() -> None:
    probe = Probe(free_address(), free_address())
    assert not probe.is_serving()
    assert probe.load() is None
    probe.close()


def test_metrics() -> None:
    text = (
        'logitport_sessions 3.0\nlogitport_step_seconds_count{part="edits",transport="grpc"} 7.0\n'
        'logitport_step_seconds_count{part="logits",transport="local"} 1.0\n'
        'logitport_step_seconds_sum{part="edits",transport="grpc"} 0.25\nother 9.0\n'
    )
    assert parse_load(text) == ServerLoad(3, 8, 0.25)
    assert parse_load("") == ServerLoad()
    with pytest.raises(ValueError, match=r".+"):
        parse_load("logitport_sessions {")
