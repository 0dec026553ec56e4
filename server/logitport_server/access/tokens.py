"""The file of those who may call: one JSON object a line, with the hash of a token or the name in a certificate."""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import re
import secrets
import stat
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field, ValidationError, model_validator

from logitport_server.config import StartupError
from logitport_server.principals import Principal

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path

logger = logging.getLogger(__name__)

_TOKEN_BYTES = 32
# Secret scanners find a token by it, where one was checked in by mistake.
_TOKEN_PREFIX = "logitport_"  # noqa: S105

# No colon: what stands in a certificate that no line names is told apart by one.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@/-]{0,127}")


def _principal_name(value: str) -> str:
    if not _NAME.fullmatch(value):
        raise ValueError(f"{value!r} cannot be a principal's name; write letters and digits, and after the first ._@/-")
    return value


PrincipalName = Annotated[str, AfterValidator(_principal_name)]
Scope = Literal["apply", "register", "admin", "cuda"]


class Grant(BaseModel):
    """One line: who somebody is that shows a token or a certificate, and what they may do.

    Attributes:
        name: of the principal. Several lines may have the same, as while a token is exchanged for another.
        scopes: what the principal may do; nothing if there are none.
        sha256: of the token's ASCII text, 64 lowercase hexadecimal digits. A slow hash is for what people think up.
        certificate: the subject alternative name of a client certificate, or its common name if it has none.
        expires: when the line ends to be of use, with a time zone; None for never.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: PrincipalName
    scopes: frozenset[Scope]
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")] = ""
    certificate: Annotated[str, Field(max_length=1024)] = ""
    expires: AwareDatetime | None = None

    @model_validator(mode="after")
    def _one_proof(self) -> Grant:
        if bool(self.sha256) == bool(self.certificate):
            raise ValueError("give either sha256 or certificate")
        return self

    @property
    def expired(self) -> bool:
        """Whether its time is over."""
        return self.expires is not None and self.expires <= datetime.now(timezone.utc)

    @property
    def line(self) -> str:
        """The line of the file."""
        content = self.model_dump(mode="json", exclude_defaults=True)
        return json.dumps({**content, "scopes": sorted(self.scopes)})

    @property
    def principal(self) -> Principal:
        """Who it is."""
        return Principal(self.name, frozenset(self.scopes))


def new_token(name: str, scopes: Collection[str], expires: datetime | None = None) -> tuple[str, Grant]:
    """A random token, and what the file says of it. Raises ValidationError for a name or a scope that cannot be."""
    token = _TOKEN_PREFIX + secrets.token_urlsafe(_TOKEN_BYTES)
    return token, Grant(name=name, scopes=frozenset(scopes), sha256=_hash(token), expires=expires)  # type: ignore[arg-type] # validated


class TokenFile:
    """Who is known, read again when the file changes.

    Raises:
        StartupError: the file cannot be read, or a line is wrong; the message names it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen = self._look()
        self._grants = self._read()
        self._by_name = _by_name(self._grants)
        self._expired = 0
        self._told = ""

    def refresh(self) -> bool:
        """Read the file again if it is another one now; one that is wrong changes nothing, and is logged.

        Returns whether any line is other than before: the file was read, or a line's time is over.
        """
        changed = False
        try:
            seen = self._look()
            if seen != self._seen:
                self._seen = seen
                self._grants = self._read()
                self._by_name = _by_name(self._grants)
                logger.info("read %d tokens and certificates again from %s", len(self._grants), self._path)
                changed = True
        except StartupError as error:
            if str(error) != self._told:
                logger.error("tokens are as they were: %s", error)
            self._told = str(error)
        else:
            self._told = ""
        expired = sum(grant.expired for grant in self._grants)
        changed, self._expired = changed or expired != self._expired, expired
        return changed

    def by_token(self, token: str) -> Grant | None:
        """The line of a token. It takes the same time whichever line that is, and if there is none."""
        digest, found = _hash(token), None
        for grant in self._grants:
            if hmac.compare_digest(grant.sha256, digest):
                found = grant
        return found

    def by_certificate(self, identity: str) -> Grant | None:
        """The line of a certificate."""
        return next((grant for grant in self._grants if grant.certificate and grant.certificate == identity), None)

    def scopes_of(self, name: str) -> frozenset[str]:
        """What the principal of this name may do by any of its lines that is of use."""
        lines = self._by_name.get(name, ())
        return frozenset[str]().union(*(grant.scopes for grant in lines if not grant.expired))

    def _look(self) -> tuple[int, int, int]:
        try:
            status = self._path.stat()
        except OSError as error:
            raise StartupError(f"--tokens {self._path}: {error.strerror}") from error
        if status.st_mode & stat.S_IWOTH:
            raise StartupError(f"--tokens {self._path}: everybody may write to it; run: chmod o-w {self._path}")
        return status.st_ino, status.st_mtime_ns, status.st_size

    def _read(self) -> list[Grant]:
        try:
            lines = self._path.read_text().splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise StartupError(f"--tokens {self._path}: {error}") from error
        return list(self._parse(lines))

    def _parse(self, lines: list[str]) -> Iterator[Grant]:
        proofs: dict[str, int] = {}
        for number, line in enumerate(lines, 1):
            if not line.strip() or line.lstrip().startswith("#"):
                continue
            where = f"--tokens {self._path}, line {number}"
            try:
                grant = Grant.model_validate_json(line)
            except ValidationError as error:
                wrong = error.errors(include_input=False, include_url=False)[0]
                place = ".".join(map(str, wrong["loc"]))
                raise StartupError(
                    f"{where}: {place}{': ' if place else ''}{wrong['msg'].removeprefix('Value error, ')}; "
                    "`logitport token` makes lines"
                ) from None
            first = proofs.setdefault(grant.sha256 or grant.certificate, number)
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
