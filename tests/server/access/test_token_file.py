"""The file of tokens and certificates."""

from __future__ import annotations

import errno
import hashlib
import json
import os
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from logitport_server.access import TokenFile, new_token
from logitport_server.lifecycle.start_errors import StartupError

NOW = datetime.now(timezone.utc)
HASH = "0" * 64


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tokens"


def line(**fields: Any) -> str:
    content = {"name": "alice", "scopes": ["apply"], "sha256": HASH, **fields}
    return json.dumps({key: value for key, value in content.items() if value is not None})


def test_a_token_is_random_and_the_file_has_only_its_hash() -> None:
    made = [new_token("alice", ["apply"]) for _ in range(8)]
    assert len({token for token, _ in made}) == 8
    for token, grant in made:
        assert len(token) > 43
        assert token not in grant.line
        assert json.loads(grant.line) == {
            "name": "alice",
            "scopes": ["apply"],
            "sha256": hashlib.sha256(token.encode()).hexdigest(),
        }


def test_a_token_identifies_its_principal(path: Path) -> None:
    made = {name: new_token(name, ["register", "apply"], NOW + timedelta(days=1)) for name in ("alice", "bob")}
    path.write_text("# of the team\n\n" + "\n".join(grant.line for _, grant in made.values()) + "\n")
    known = TokenFile(path)
    for name, (token, _) in made.items():
        grant = known.by_token(token)
        assert grant is not None
        assert not grant.expired
        assert (grant.principal.name, grant.principal.scopes) == (name, {"apply", "register"})
    for wrong in ("", "x", HASH, made["bob"][0][:-1], made["bob"][0] + "x", "\udc80"):
        assert known.by_token(wrong) is None


def test_a_certificate_identifies_its_principal(path: Path) -> None:
    path.write_text(line() + "\n" + line(sha256=None, certificate="engine.example", name="engine"))
    known = TokenFile(path)
    grant = known.by_certificate("engine.example")
    assert grant is not None
    assert grant.name == "engine"
    assert known.by_certificate("engine") is None
    assert known.by_certificate("") is None
    # A line without a hash matches no token.
    assert known.by_token("") is None


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("not JSON", "Invalid JSON"),
        ("[]", "valid dictionary|object"),
        (line(name=""), "name: '' is not a valid principal name"),
        (line(name="certificate:x"), "name: .* is not a valid principal name"),
        (line(name="a b"), "name: .* is not a valid principal name"),
        (line(scopes=["root"]), "scopes.*'apply', 'register', 'admin' or 'cuda'"),
        (line(scopes="apply"), "scopes: "),
        (line(sha256="00"), "sha256: "),
        (line(sha256=HASH.replace("0", "A")), "sha256: "),
        (line(sha256=None), "give either sha256 or certificate"),
        (line(certificate="x"), "give either sha256 or certificate"),
        (line(expires="2030-01-01T00:00:00"), "expires: .*timezone"),
        (line(expires="soon"), "expires: "),
        (line(token="x"), "token: "),
        ('{"name": "alice"}', "scopes: "),
    ],
)
def test_the_error_names_an_invalid_line(path: Path, wrong: str, message: str) -> None:
    path.write_text(f"# first\n{line(sha256='1' * 64)}\n{wrong}\n")
    with pytest.raises(StartupError, match=rf"--tokens {path}, line 3: {message}"):
        TokenFile(path)


def test_the_error_does_not_quote_an_invalid_line(path: Path) -> None:
    """The line may hold a token by mistake, in place of its hash."""
    path.write_text(line(sha256="logitport_secret"))
    with pytest.raises(StartupError) as refused:
        TokenFile(path)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("twice", [line(), line(sha256=None, certificate="x")])
def test_duplicate_lines_are_refused(path: Path, twice: str) -> None:
    path.write_text(f"{twice}\n\n{twice}")
    with pytest.raises(StartupError, match=r"line 3: .* line 1"):
        TokenFile(path)


def test_an_unreadable_file_is_refused(path: Path) -> None:
    with pytest.raises(StartupError, match=rf"--tokens {path}: No such file"):
        TokenFile(path)
    path.mkdir()
    with pytest.raises(StartupError, match="directory"):
        TokenFile(path)
    path.rmdir()
    path.write_bytes(b"\xff")
    with pytest.raises(StartupError, match="utf-8"):
        TokenFile(path)


def test_a_file_that_all_users_can_write_is_refused(path: Path) -> None:
    path.write_text(line())
    path.chmod(0o666)
    with pytest.raises(StartupError, match=f"chmod o-w {path}"):
        TokenFile(path)


def test_a_changed_file_is_read_again(path: Path) -> None:
    (old, first), (new, second) = new_token("alice", ["apply"]), new_token("bob", ["apply"])
    path.write_text(first.line)
    known = TokenFile(path)
    assert not known.refresh()
    replacement = path.with_suffix(".new")
    replacement.write_text(second.line)
    os.replace(replacement, path)
    assert known.refresh()
    assert not known.refresh()
    assert known.by_token(old) is None
    assert known.by_token(new) == second
    path.write_text("not JSON, and longer than before")
    assert not known.refresh()
    assert known.by_token(new) == second


def test_a_change_that_cannot_be_read_yet_is_read_later(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a caller that takes the server's last descriptor could keep a revoked token."""
    token, grant = new_token("alice", ["apply"])
    path.write_text(grant.line)
    known = TokenFile(path)
    path.write_text("# revoked")
    with monkeypatch.context() as context:
        context.setattr(Path, "read_text", Mock(side_effect=OSError(errno.EMFILE, "Too many open files")))
        assert not known.refresh()
    assert known.refresh()
    assert known.by_token(token) is None


def test_an_expired_line_counts_as_a_change(path: Path) -> None:
    _, grant = new_token("alice", ["apply"], NOW - timedelta(seconds=1))
    path.write_text(grant.line)
    known = TokenFile(path)
    assert grant.expired
    assert known.refresh()
    assert not known.refresh()
