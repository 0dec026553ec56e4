"""Encrypted connections, and clients authenticated by certificates."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
import torch
from cryptography import x509

from logitport import AccessDenied, Client, Request, ServerUnavailable, Tls
from logitport_server.access import new_token
from logitport_server.access.token_file import Grant
from tests.conftest import COMMAND

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.certificates import Authority
    from tests.conftest import RunningServer

VOCAB = 8
TOKEN, OPERATOR = new_token("operator", ["admin", "apply"])
KNOWN = Grant(name="engine", scopes=frozenset({"apply"}), certificate="engine.example")
BANNED = Grant(name="banned", scopes=frozenset(), certificate="banned.example")


@pytest.fixture(scope="module")
def encrypted(serving: Callable[..., Any], authority: Authority) -> Iterator[RunningServer]:
    """A server with TLS and without authentication."""
    pair = authority.issue_server()
    with serving("--tls-cert", str(pair.cert), "--tls-key", str(pair.key)) as running:
        yield running


@pytest.fixture(scope="module")
def mutual(serving: Callable[..., Any], authority: Authority) -> Iterator[RunningServer]:
    """A server with TLS on all addresses that requires a client certificate and also accepts tokens."""
    pair = authority.issue_server("mutual")
    tls = ("--tls-cert", str(pair.cert), "--tls-key", str(pair.key), "--tls-client-ca", str(authority.ca))
    options = ("--listen", "0.0.0.0:0", "--enable-custom-logit-processor")
    with serving(*tls, *options, grants=(OPERATOR, KNOWN, BANNED)) as running:
        running.target = running.target.replace("0.0.0.0", "127.0.0.1")
        yield running


def issued(authority: Authority, common: str, *alternatives: str, **options: Any) -> Tls:
    pair = authority.issue(common, *(x509.DNSName(name) for name in alternatives), **options)
    return Tls(ca=authority.ca, cert=pair.cert, key=pair.key)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_client_that_trusts_the_authority(encrypted: RunningServer, authority: Authority, host: str) -> None:
    target = encrypted.target.replace("127.0.0.1", host)
    with (
        Client(target, tls=Tls(ca=authority.ca)) as client,
        client.session(vocab_size=VOCAB, dtype="float32") as session,
    ):
        assert session.transport == "local"
        logits = torch.zeros(1, VOCAB)
        handle = session.add(Request([1], processors=[("disallowed_tokens", {"token_ids": [2]})]))
        session.step({handle: []}).apply(logits)
        assert logits[0, 2] == float("-inf")


def test_a_server_of_an_untrusted_authority_is_refused(
    encrypted: RunningServer, untrusted_authority: Authority
) -> None:
    for tls in (Tls(ca=untrusted_authority.ca), Tls()):
        with (
            Client(encrypted.target, tls=tls, token=TOKEN, timeout=30) as client,
            pytest.raises(ServerUnavailable, match=r"the server's certificate is not trusted: .*; pass tls=Tls\(ca="),
        ):
            client.processors()


def test_a_self_signed_certificate(start_server: Callable[..., RunningServer], untrusted_authority: Authority) -> None:
    pair = untrusted_authority.issue_self_signed()
    running = start_server("--tls-cert", str(pair.cert), "--tls-key", str(pair.key))
    for call in (Client.processors, lambda client: client.session(vocab_size=VOCAB, dtype="float32")):
        with (
            Client(running.target, tls=Tls(), timeout=30) as client,
            pytest.raises(ServerUnavailable, match=r"CERTIFICATE_VERIFY_FAILED.*; pass tls=Tls\(ca='FILE'") as raised,
        ):
            call(client)
        assert "is `logitport serve` running there" not in str(raised.value)
    with Client(running.target, tls=Tls(ca=pair.cert)) as client:
        assert client.processors()


@pytest.mark.parametrize(
    ("host", "problem"),
    [
        ("other.example", r"names another host: .*; connect by a name in it, set Tls\(server_name"),
        ("", "has expired: .*; renew it"),
    ],
)
def test_an_unfit_certificate_of_a_server(
    start_server: Callable[..., RunningServer], authority: Authority, host: str, problem: str
) -> None:
    unfit = "unfit-server"
    pair = authority.issue(unfit, x509.DNSName(host)) if host else authority.issue_server(unfit, expired=True)
    running = start_server("--tls-cert", str(pair.cert), "--tls-key", str(pair.key))
    with (
        Client(running.target, tls=Tls(ca=authority.ca), timeout=30) as client,
        pytest.raises(ServerUnavailable, match=f"the server's certificate {problem}"),
    ):
        client.processors()


def test_a_client_without_tls_is_refused(encrypted: RunningServer) -> None:
    for call in (Client.processors, lambda client: client.session(vocab_size=VOCAB, reconnect_seconds=0)):
        with (
            Client(encrypted.target, timeout=30) as client,
            pytest.raises(ServerUnavailable, match=r"If it uses TLS, pass tls=Tls\(ca=\.\.\.\), with cert and key"),
        ):
            call(client)


def test_the_principal_of_a_certificate(mutual: RunningServer, authority: Authority) -> None:
    for tls, owner in (
        (issued(authority, "x", "new.example"), "certificate:new.example"),
        (issued(authority, "common.example"), "certificate:common.example"),
    ):
        with Client(mutual.target, tls=tls) as client:
            assert client.register(Plain, name=f"{owner.partition(':')[2]}/x").owner == owner
    with Client(mutual.target, tls=issued(authority, "x", "engine.example")) as engine:
        assert engine.processors()
        with pytest.raises(AccessDenied, match="'engine' may not call Register"):
            engine.register(Plain)
    banned = issued(authority, "x", "banned.example")
    with (
        Client(mutual.target, tls=banned) as client,
        pytest.raises(AccessDenied, match="this certificate is unknown"),
    ):
        client.processors()


class Plain:
    def __call__(self, logits: Any, custom_param_list: Any = None) -> Any:
        return logits


def test_a_token_over_a_certificate(mutual: RunningServer, authority: Authority) -> None:
    tls = issued(authority, "x", "engine.example")
    with Client(mutual.target, tls=tls, token=TOKEN) as operator:
        assert {ref.owner for ref in operator.processors()} > {""}, "an admin sees all"
    with Client(mutual.target, tls=tls, token="x") as unauthenticated, pytest.raises(AccessDenied):
        unauthenticated.processors()


def test_the_command_line_client(mutual: RunningServer, authority: Authority) -> None:
    tls = issued(authority, "x", "operator.example")
    with Client(mutual.target, tls=tls) as client:
        client.register(Plain, name="operator.example/plain")
    files = ("--tls-ca", str(tls.ca), "--tls-cert", str(tls.cert), "--tls-key", str(tls.key))
    command = [COMMAND, "processors", "unquarantine", mutual.target, "operator.example/plain", *files]
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, env=os.environ | {"LOGITPORT_TOKEN": TOKEN}
    )
    assert (done.returncode, done.stdout) == (0, "operator.example/plain is not quarantined\n"), done.stderr


def test_the_command_line_client_of_an_address_that_the_certificate_lacks(
    start_server: Callable[..., RunningServer], authority: Authority
) -> None:
    pair = authority.issue("server", x509.DNSName("servers.example"), file="of-a-name")
    running = start_server("--tls-cert", str(pair.cert), "--tls-key", str(pair.key))
    command = [COMMAND, "drain", running.target, "--tls-ca", str(authority.ca)]
    done = subprocess.run(
        [*command, "--tls-server-name", "servers.example"], check=False, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 1
    assert "names another host" in done.stderr


def test_certificates_that_are_refused(
    mutual: RunningServer, authority: Authority, untrusted_authority: Authority
) -> None:
    strange = issued(untrusted_authority, "x", "engine.example")
    for tls in (
        Tls(ca=authority.ca),
        Tls(ca=authority.ca, cert=strange.cert, key=strange.key),
        issued(authority, "x", "engine.example", expired=True, file="expired"),
    ):
        with (
            Client(mutual.target, tls=tls, token=TOKEN, timeout=30) as client,
            pytest.raises(ServerUnavailable, match="if it requires client certificates, pass") as refused,
        ):
            client.processors()
        assert "If it speaks TLS" not in str(refused.value)


def test_a_certificate_without_a_name(mutual: RunningServer, authority: Authority) -> None:
    nameless = issued(authority, "", file="nameless")
    with Client(mutual.target, tls=nameless) as client, pytest.raises(AccessDenied, match="and no common name"):
        client.processors()


def test_a_certificate_is_renewed_without_a_restart(
    start_server: Callable[..., RunningServer], authority: Authority, untrusted_authority: Authority, tmp_path: Path
) -> None:
    first, second = untrusted_authority.issue_server("first"), authority.issue_server("second")
    cert, key = tmp_path / "cert", tmp_path / "key"
    replace_file(first.cert, cert), replace_file(first.key, key)
    running = start_server("--tls-cert", str(cert), "--tls-key", str(key))
    with Client(running.target, tls=Tls(ca=untrusted_authority.ca)) as client:
        client.processors()
        replace_file(second.cert, cert), replace_file(second.key, key)
        with Client(running.target, tls=Tls(ca=authority.ca)) as later:
            later.processors()
        client.processors()  # the open connection stays open
        cert.write_text("nonsense")
        with Client(running.target, tls=Tls(ca=authority.ca)) as later:
            later.processors()
    assert "--tls-cert" in running.log.read_text()


def replace_file(source: Path, target: Path) -> None:
    copy = target.with_suffix(".new")
    copy.write_bytes(source.read_bytes())
    os.replace(copy, target)
