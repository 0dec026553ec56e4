"""A client's target, TLS and token, and the targets to which it refuses to send the token."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from logitport import Client, InvalidArgument, Tls
from logitport.servers.connection import TOKEN_VARIABLE, Connection

if TYPE_CHECKING:
    from pathlib import Path

HERE = [
    *("127.0.0.1:50051", "127.1.2.3:1", "localhost:50051", "[::1]:50051", "ipv6:[::1]:50051", "ipv4:127.0.0.1:50051"),
    *("dns:///localhost:50051", "dns:localhost:1", "unix:/run/lp.sock", "unix:///run/lp.sock", "unix-abstract:lp"),
]
ELSEWHERE = [
    *("10.0.0.1:50051", "example.com:50051", "[2001:db8::1]:50051", "ipv4:10.0.0.1:50051,127.0.0.1:50051"),
    *("dns:///example.com:50051", "localhost.example.com:1", "127.0.0.1.example.com:1", "xds:///127.0.0.1:1"),
    *("dns://127.0.0.1/example.com:1", "dns://192.0.2.1/localhost:1", "dns:///example.com"),
]


def prepared(target: str, token: str | None, tls: Tls | None) -> Connection:
    connection = Connection.prepare(token, tls)
    connection.check(target)
    return connection


@pytest.fixture(autouse=True)
def no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)


@pytest.mark.parametrize("target", HERE)
def test_a_token_is_sent_unencrypted_to_this_machine(target: str) -> None:
    assert prepared(target, "secret", None).metadata == (("authorization", "Bearer secret"),)


@pytest.mark.parametrize("target", ELSEWHERE)
def test_a_token_is_not_sent_unencrypted_to_another_machine(target: str) -> None:
    with pytest.raises(InvalidArgument, match=r"unencrypted: pass tls=Tls\(\.\.\.\)") as refused:
        prepared(target, "secret", None)
    assert "secret" not in str(refused.value)
    assert prepared(target, "secret", Tls()).metadata
    assert not prepared(target, None, None).metadata


def test_the_token_is_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, "secret")
    assert prepared("127.0.0.1:1", None, None).metadata == (("authorization", "Bearer secret"),)
    assert prepared("127.0.0.1:1", "other", None).metadata == (("authorization", "Bearer other"),)
    assert prepared("example.com:1", "", None).metadata == ()
    with pytest.raises(InvalidArgument, match="unset LOGITPORT_TOKEN"):
        Client("example.com:1")


@pytest.mark.parametrize("token", ["two words", "two\nlines", "tokën", "tab\t"])
def test_an_invalid_token_is_refused(token: str) -> None:
    with pytest.raises(InvalidArgument, match="pass the whole token") as refused:
        prepared("127.0.0.1:1", token, None)
    assert token not in str(refused.value)


@pytest.mark.parametrize(
    "target",
    ["", "localhost", "example.com:", "127.0.0.1", "[::1]", "[::1]:", "::1", "2001:db8::1", "unix:", "/run/lp"],
)
def test_a_target_without_a_port_is_refused(target: str) -> None:
    with pytest.raises(InvalidArgument, match=r"has no port; write HOST:PORT .* unix:PATH") as refused:
        Client(target)
    assert repr(target) in str(refused.value)


@pytest.mark.parametrize(
    "target",
    [
        *("127.0.0.1:0", "127.0.0.1:65536", "127.0.0.1:-1", "127.0.0.1:http", "[::1]:123456", "127.0.0.1:\u0661"),
        *("127.0.0.1:1 127.0.0.1:2", "127.0.0.1:1;127.0.0.1:2", " 127.0.0.1:1", "127.0.0.1:1\n", "[::1:1", "a/b:1"),
    ],
)
def test_a_target_that_is_not_one_address_is_refused(target: str) -> None:
    """gRPC accepts it, and tries to resolve it at each call."""
    for given in (target, [target, "127.0.0.1:1"]):
        if given in (" 127.0.0.1:1", "127.0.0.1:1\n"):  # white space around the elements of one text is ignored
            continue
        with pytest.raises(InvalidArgument, match=r"is not one address; write HOST:PORT .* unix:PATH") as refused:
            Client(given)
        assert repr(target) in str(refused.value)


@pytest.mark.parametrize("target", [["a:1,b:1"], "127.0.0.1:1,b", ["127.0.0.1:1", "http://a/x"], [5]])
def test_a_list_with_an_invalid_address(target: Any) -> None:
    with pytest.raises(InvalidArgument, match="target "):
        Client(target)


def test_unreadable_or_incomplete_tls_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=rf"cannot read {tmp_path}/ca\.pem: No such file"):
        Client("127.0.0.1:1", tls=Tls(ca=tmp_path / "ca.pem"))
    for tls in (Tls(cert=tmp_path), Tls(key=tmp_path)):
        with pytest.raises(InvalidArgument, match="cert and key go together"):
            Client("127.0.0.1:1", tls=tls)
