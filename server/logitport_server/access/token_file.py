"""The file of callers: one JSON object per line, with the hash of a token or the name in a certificate."""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import secrets
import stat
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field, ValidationError, model_validator

from logitport_server.lifecycle.start_errors import StartupError
from logitport_server.reloaded import Reloaded
from logitport_session.trust.principals import Principal

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path

_TOKEN_BYTES = 32
# Secret scanners use the prefix to find tokens that were checked in by mistake.
_TOKEN_PREFIX = "logitport_"  # noqa: S105

# A colon is not allowed: it marks the principals of certificates that the file does not list.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@/-]{0,127}")


def _principal_name(value: str) -> str:
    if not _NAME.fullmatch(value):
        raise ValueError(
            f"{value!r} is not a valid principal name; use letters and digits, and also ._@/- after the first character"
        )
    return value


PrincipalName = Annotated[str, AfterValidator(_principal_name)]
Scope = Literal["apply", "register", "admin", "cuda"]


class Grant(BaseModel):
    """One line of the file: the principal and the scopes of a token or certificate.

    Attributes:
        name: name of the principal. Several lines may have the same name, for example while a token is replaced.
        scopes: scopes of the principal; without any, it may call nothing.
        sha256: SHA-256 of the token's ASCII text, 64 lowercase hexadecimal digits. A slow password hash is not needed,
            because tokens are random.
        certificate: the subject alternative name of a client certificate, or else its common name.
        expires: time after which the line is invalid, with a time zone; None for never.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: PrincipalName
    scopes: frozenset[Scope]
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")] = ""
    certificate: Annotated[str, Field(max_length=1024)] = ""
    expires: AwareDatetime | None = None

    @model_validator(mode="after")
    def _one_credential(self) -> Grant:
        if bool(self.sha256) == bool(self.certificate):
            raise ValueError("give either sha256 or certificate")
        return self

    @property
    def expired(self) -> bool:
        """Whether the line has expired."""
        return self.expires is not None and self.expires <= datetime.now(timezone.utc)

    @property
    def line(self) -> str:
        """The line as text."""
        content = self.model_dump(mode="json", exclude_defaults=True)
        return json.dumps({**content, "scopes": sorted(self.scopes)})

    @property
    def principal(self) -> Principal:
        """The principal with the scopes of this line."""
        return Principal(self.name, frozenset(self.scopes))


def new_token(name: str, scopes: Collection[str], expires: datetime | None = None) -> tuple[str, Grant]:
    """Generate a random token, and its line for the file. Raises ValidationError for an invalid name or scope."""
    token = _TOKEN_PREFIX + secrets.token_urlsafe(_TOKEN_BYTES)
    return token, Grant(name=name, scopes=frozenset(scopes), sha256=_hash(token), expires=expires)  # type: ignore[arg-type] # validated


class TokenFile:
    """The lines of the file, read again when it changes.

    Raises:
        StartupError: the file cannot be read, or a line is invalid; the message names the line.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = Reloaded(
            "tokens", lambda: [path], self._read, lambda grants: f"{len(grants)} tokens and certificates from {path}"
        )
        self._by_name = _by_name(self._grants)
        self._expired = 0

    def refresh(self) -> bool:
        """Read the file again if it has changed. An invalid file is logged, and the previous lines stay in use.

        Returns:
            Whether the valid lines may have changed: the file was read, or a line has expired.
        """
        changed = self._file.refresh()
        if changed:
            self._by_name = _by_name(self._grants)
        expired = sum(grant.expired for grant in self._grants)
        changed, self._expired = changed or expired != self._expired, expired
        return changed

    def by_token(self, token: str) -> Grant | None:
        """Check a token: return its line, None if it is unknown. Takes the same time for every line and every token."""
        digest, found = _hash(token), None
        for grant in self._grants:
            if hmac.compare_digest(grant.sha256, digest):
                found = grant
        return found

    def by_certificate(self, identity: str) -> Grant | None:
        """The line of a certificate."""
        return next((grant for grant in self._grants if grant.certificate and grant.certificate == identity), None)

    def scopes_of(self, name: str) -> frozenset[str]:
        """The scopes of the principal of this name, from all its lines that have not expired."""
        lines = self._by_name.get(name, ())
        return frozenset[str]().union(*(grant.scopes for grant in lines if not grant.expired))

    @property
    def _grants(self) -> list[Grant]:
        return self._file.value

    def _read(self) -> list[Grant]:
        try:
            mode = self._path.stat().st_mode
            if mode & stat.S_IWOTH:
                raise StartupError(f"--tokens {self._path} is writable for all users; run: chmod o-w {self._path}")
            lines = self._path.read_text().splitlines()
        except OSError as error:
            raise StartupError(f"--tokens {self._path}: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise StartupError(f"--tokens {self._path}: {error}") from error
        return list(self._parse(lines))

    def _parse(self, lines: list[str]) -> Iterator[Grant]:
        credentials: dict[str, int] = {}
        for number, line in enumerate(lines, 1):
            if not line.strip() or line.lstrip().startswith("#"):
                continue
            where = f"--tokens {self._path}, line {number}"
            try:
                grant = Grant.model_validate_json(line)
            except ValidationError as error:
                first_error = error.errors(include_input=False, include_url=False)[0]
                field = ".".join(map(str, first_error["loc"]))
                raise StartupError(
                    f"{where}: {field}{': ' if field else ''}{first_error['msg'].removeprefix('Value error, ')}; "
                    "generate lines with `logitport token`"
                ) from None
            first = credentials.setdefault(grant.sha256 or grant.certificate, number)
            if first != number:
                raise StartupError(f"{where}: the same token or certificate as in line {first}; remove one of them")
            yield grant


def _by_name(grants: list[Grant]) -> dict[str, list[Grant]]:
    lines: dict[str, list[Grant]] = {}
    for grant in grants:
        lines.setdefault(grant.name, []).append(grant)
    return lines


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode(errors="surrogateescape")).hexdigest()
