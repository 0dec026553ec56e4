"""Errors of the SDK that commands print have the commands' flags."""

from __future__ import annotations

from typing import Any

import pytest

from logitport import Tls
from logitport.errors import InvalidArgument
from logitport.servers.connection import Connection
from logitport.shipping import calls
from logitport_server.cli.advice import with_flags

CLOSED, ELSEWHERE = "127.0.0.1:1", "logits.example:1"


@pytest.mark.slow
@pytest.mark.parametrize("command", [("status",), ("top", "--once"), ("drain",), ("processors", "get")], ids=" ".join)
@pytest.mark.parametrize(
    ("target", "options", "advice"),
    [
        (CLOSED, (), "If it uses TLS, pass --tls-ca FILE, with --tls-cert FILE and --tls-key FILE"),
        (CLOSED, ("--tls-server-name", "x"), "pass --tls-ca FILE; if it requires client certificates, pass --tls-ca"),
        (ELSEWHERE, (), "pass --tls-ca FILE, or unset LOGITPORT_TOKEN if the server"),
        ("https://logits.example:1", (), "--tls-ca"),
        (CLOSED, ("--tls-ca", "/missing"), "logitport: cannot read /missing"),
        (CLOSED, ("--tls-cert", "/missing"), "--tls-cert and --tls-key go together; give both"),
    ],
)
def test_advice(
    logitport: Any,
    command: tuple[str, ...],
    target: str,
    options: tuple[str, ...],
    advice: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LOGITPORT_TOKEN", "token")
    ended = logitport(*command, target, *(["name"] if command[-1] == "get" else []), *options)
    assert ended.status
    assert "Tls(" not in ended.err
    assert "Tls:" not in ended.err
    if not target.startswith("https"):  # that is a document, except for `drain`
        assert advice in ended.err


def test_certificates() -> None:
    for advice in (*calls._CONNECTION_ADVICE.values(), *(each[2] for each in calls._CERTIFICATE_PROBLEMS)):
        assert "Tls" not in with_flags(advice), "of the SDK alone"


def test_a_url() -> None:
    with pytest.raises(InvalidArgument) as refused:
        Connection.prepare(None, Tls()).check("http://logits.example")
    assert "pass --tls-ca FILE for an encrypted connection" in with_flags(str(refused.value))
