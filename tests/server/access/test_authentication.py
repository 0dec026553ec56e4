"""From what a caller shows to who that is."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import pytest

from logitport import NotAuthenticated
from logitport_server.access import Authenticator, TokenFile, new_token
from logitport_server.access.tokens import Grant
from logitport_server.principals import ANONYMOUS, CUDA, SCOPES, Principal

if TYPE_CHECKING:
    from pathlib import Path

TOKEN, ALICE = new_token("alice", ["apply", "admin"])
OLD, EXPIRED = new_token("alice", ["apply"], datetime(2020, 1, 1, tzinfo=timezone.utc))
NOTHING, REVOKED = new_token("alice", [])
ENGINE = Grant(name="engine", scopes=frozenset({"apply"}), certificate="engine.example")
BANNED = Grant(name="banned", scopes=frozenset(), certificate="banned.example")

Metadata = list[tuple[str, Any]]


@pytest.fixture
def tokens(tmp_path: Path) -> TokenFile:
    path = tmp_path / "tokens"
    path.write_text("\n".join(grant.line for grant in (ALICE, EXPIRED, REVOKED, ENGINE, BANNED)))
    return TokenFile(path)


def shows(token: str, scheme: str = "Bearer") -> Metadata:
    return [("user-agent", "x"), ("authorization", f"{scheme} {token}")]


def certificate(*alternatives: str, common: str = "") -> dict[str, list[bytes]]:
    return {
        "x509_subject_alternative_name": [name.encode() for name in alternatives],
        "x509_common_name": [common.encode()] if common else [],
    }


def test_nobody_is_asked_where_nothing_is_configured() -> None:
    authenticator = Authenticator(None, certificates=False)
    assert not authenticator.required
    assert authenticator.authenticate(shows("x"), {}) is ANONYMOUS


def test_everyone_has_every_scope_where_nobody_is_asked() -> None:
    authenticator = Authenticator(None, certificates=False)
    assert all(authenticator.grants("", scope) for scope in SCOPES)
    assert not authenticator.grants("alice", CUDA)  # whose code lies in the store from the time when she was asked


def test_what_an_author_is_granted(tmp_path: Path) -> None:
    """By any line of theirs that is of use, whoever calls; and nobody has what no line says."""
    path = tmp_path / "tokens"
    lines = [
        new_token("alice", ["apply"])[1],
        new_token("alice", ["register", "cuda"])[1],
        new_token("bob", ["cuda"], datetime(2020, 1, 1, tzinfo=timezone.utc))[1],
        ENGINE,
    ]
    path.write_text("\n".join(grant.line for grant in lines))
    tokens = TokenFile(path)
    authenticator = Authenticator(tokens, certificates=True)
    known = ("alice", "bob", "engine", "", "certificate:engine.example", "nobody")
    assert [name for name in known if authenticator.grants(name, CUDA)] == ["alice"]
    path.write_text(lines[0].line)
    authenticator.refresh()
    assert not authenticator.grants("alice", CUDA)
    assert authenticator.grants("alice", "apply")
    assert not Authenticator(None, certificates=True).grants("", CUDA)


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
def test_a_token(tokens: TokenFile, scheme: str) -> None:
    authenticator = Authenticator(tokens, certificates=False)
    assert authenticator.required
    assert authenticator.authenticate(shows(TOKEN, scheme), {}) == Principal("alice", frozenset({"apply", "admin"}))


@pytest.mark.parametrize(
    "metadata",
    [
        *(shows(wrong) for wrong in ("", "x", OLD, NOTHING, TOKEN[:-1], "*")),
        shows(TOKEN, "Basic"),
        [("authorization", TOKEN)],
        [("authorization", b"Bearer " + TOKEN.encode())],
        [*shows("x"), *shows(TOKEN)],
        [*shows(TOKEN), *shows(TOKEN)],
    ],
)
@pytest.mark.parametrize("certificates", [False, True])
def test_a_wrong_token_is_never_left_for_a_certificate(
    tokens: TokenFile, metadata: Metadata, certificates: bool
) -> None:
    authenticator = Authenticator(tokens, certificates=certificates)
    with pytest.raises(NotAuthenticated) as refused:
        authenticator.authenticate(metadata, certificate("engine.example"))
    assert str(refused.value) == (
        "this token is unknown, expired or revoked; ask the server's operator for a valid one"
    )


def test_no_token(tokens: TokenFile) -> None:
    with pytest.raises(NotAuthenticated, match=r"has no token; pass one as Client\(token=...\)"):
        Authenticator(tokens, certificates=False).authenticate([], certificate("engine.example"))


def test_a_certificate(tokens: TokenFile) -> None:
    for known in (tokens, None):
        authenticator = Authenticator(known, certificates=True)
        named = "engine" if known else "certificate:engine.example"
        assert authenticator.authenticate([], certificate("engine.example", "other", common="x")).name == named
        assert authenticator.authenticate([], certificate(common="engine.example")).name == named
        stranger = authenticator.authenticate([], certificate("new.example"))
        assert stranger == Principal("certificate:new.example", frozenset({"apply", "register"}))


def test_a_token_decides_over_a_certificate(tokens: TokenFile) -> None:
    authenticator = Authenticator(tokens, certificates=True)
    assert authenticator.authenticate(shows(TOKEN), certificate("engine.example")).name == "alice"


def test_a_certificate_that_may_do_nothing(tokens: TokenFile) -> None:
    with pytest.raises(NotAuthenticated, match="this certificate is unknown, expired or revoked"):
        Authenticator(tokens, certificates=True).authenticate([], certificate("banned.example"))


@pytest.mark.parametrize("nameless", [{}, certificate(), certificate("")])
def test_a_certificate_without_a_name(nameless: dict[str, list[bytes]]) -> None:
    with pytest.raises(NotAuthenticated, match="neither a subject alternative name nor a common name"):
        Authenticator(None, certificates=True).authenticate([], nameless)
