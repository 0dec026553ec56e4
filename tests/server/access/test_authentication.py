"""Authentication: the principal of a token or certificate."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import pytest

from logitport import AccessDenied
from logitport_server.access import Authenticator, TokenFile, new_token
from logitport_server.access.token_file import Grant
from logitport_session.trust.principals import ANONYMOUS, CUDA, SCOPES, Principal

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


def with_token(token: str, scheme: str = "Bearer") -> Metadata:
    return [("user-agent", "x"), ("authorization", f"{scheme} {token}")]


def certificate(*alternatives: str, common: str = "") -> dict[str, list[bytes]]:
    return {
        "x509_subject_alternative_name": [name.encode() for name in alternatives],
        "x509_common_name": [common.encode()] if common else [],
    }


def test_without_configuration_callers_are_anonymous() -> None:
    authenticator = Authenticator(None, certificates=False)
    assert not authenticator.required
    assert authenticator.authenticate(with_token("x"), {}) is ANONYMOUS


def test_without_authentication_every_caller_has_all_scopes() -> None:
    authenticator = Authenticator(None, certificates=False)
    assert all(authenticator.grants("", scope) for scope in SCOPES)
    assert not authenticator.grants("alice", CUDA)  # the store may have her code from a time with authentication


def test_scopes_of_an_author(tmp_path: Path) -> None:
    """Any valid line of the author grants its scopes, whichever client calls. Other authors get none."""
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
    known = ("alice", "bob", "engine", "", "certificate:engine.example", "unknown")
    assert [name for name in known if authenticator.grants(name, CUDA)] == ["alice"]
    path.write_text(lines[0].line)
    authenticator.refresh()
    assert not authenticator.grants("alice", CUDA)
    assert authenticator.grants("alice", "apply")
    assert not Authenticator(None, certificates=True).grants("", CUDA)


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
def test_a_valid_token(tokens: TokenFile, scheme: str) -> None:
    authenticator = Authenticator(tokens, certificates=False)
    assert authenticator.required
    assert authenticator.authenticate(with_token(TOKEN, scheme), {}) == Principal(
        "alice", frozenset({"apply", "admin"})
    )


@pytest.mark.parametrize(
    "metadata",
    [
        *(with_token(wrong) for wrong in ("", "x", OLD, NOTHING, TOKEN[:-1], "*")),
        with_token(TOKEN, "Basic"),
        [("authorization", TOKEN)],
        [("authorization", b"Bearer " + TOKEN.encode())],
        [*with_token("x"), *with_token(TOKEN)],
        [*with_token(TOKEN), *with_token(TOKEN)],
    ],
)
@pytest.mark.parametrize("certificates", [False, True])
def test_a_wrong_token_is_refused_despite_a_valid_certificate(
    tokens: TokenFile, metadata: Metadata, certificates: bool
) -> None:
    authenticator = Authenticator(tokens, certificates=certificates)
    with pytest.raises(AccessDenied) as refused:
        authenticator.authenticate(metadata, certificate("engine.example"))
    assert str(refused.value) == (
        "this token is unknown, expired or revoked; ask the server's operator for a valid one"
    )


def test_a_call_without_a_token_is_refused(tokens: TokenFile) -> None:
    with pytest.raises(AccessDenied, match=r"has no token; pass one as Client\(token=...\)"):
        Authenticator(tokens, certificates=False).authenticate([], certificate("engine.example"))


def test_a_valid_certificate(tokens: TokenFile) -> None:
    for known in (tokens, None):
        authenticator = Authenticator(known, certificates=True)
        named = "engine" if known else "certificate:engine.example"
        assert authenticator.authenticate([], certificate("engine.example", "other", common="x")).name == named
        assert authenticator.authenticate([], certificate(common="engine.example")).name == named
        unknown = authenticator.authenticate([], certificate("new.example"))
        assert unknown == Principal("certificate:new.example", frozenset({"apply", "register"}))


def test_a_certificate_without_scopes_is_refused(tokens: TokenFile) -> None:
    with pytest.raises(AccessDenied, match="this certificate is unknown, expired or revoked"):
        Authenticator(tokens, certificates=True).authenticate([], certificate("banned.example"))


@pytest.mark.parametrize("nameless", [{}, certificate(), certificate("")])
def test_a_certificate_without_a_name_is_refused(nameless: dict[str, list[bytes]]) -> None:
    with pytest.raises(AccessDenied, match="no subject alternative name and no common name"):
        Authenticator(None, certificates=True).authenticate([], nameless)
