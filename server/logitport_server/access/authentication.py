"""From what a caller shows to who that is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logitport.errors import NotAuthenticated
from logitport_server.principals import ANONYMOUS, APPLY, REGISTER, Principal

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from logitport_server.access.tokens import Grant, TokenFile

_SCHEME = "bearer "


class Authenticator:
    """Knows callers by their token or their certificate; where it is to ask for neither, all are `ANONYMOUS`.

    A token, where one is sent, decides; it is never left for the certificate. A certificate that the operator's
    authority signed and that no line of the file names is principal `certificate:<name>` and may apply and register.

    Args:
        tokens: those that the operator knows.
        certificates: whether the connection was let in for its client certificate.
    """

    def __init__(self, tokens: TokenFile | None, *, certificates: bool) -> None:
        self._tokens = tokens
        self._certificates = certificates

    @property
    def asks(self) -> bool:
        """Whether a caller must show anything."""
        return self._tokens is not None or self._certificates

    def refresh(self) -> bool:
        """Look at the tokens again; whether somebody may be known no more."""
        return self._tokens is not None and self._tokens.refresh()

    def grants(self, name: str, scope: str) -> bool:
        """Whether the principal of this name has a scope now, whoever calls: code is used by others than its author."""
        if not self.asks:
            return name == ANONYMOUS.name and ANONYMOUS.may(scope)
        return self._tokens is not None and scope in self._tokens.scopes_of(name)

    def authenticate(
        self, metadata: Iterable[tuple[str, str | bytes]], auth_context: Mapping[str, Iterable[bytes]]
    ) -> Principal:
        """Who calls.

        Args:
            metadata: the call's.
            auth_context: what gRPC found out about the connection's other end.

        Raises:
            NotAuthenticated: nobody that the server knows. The message does not tell a wrong token from an old one.
        """
        if not self.asks:
            return ANONYMOUS
        shown = [value for key, value in metadata if key == "authorization"]
        if shown and self._tokens is not None:
            return self._by_token(shown)
        if self._certificates:
            return self._by_certificate(auth_context)
        raise NotAuthenticated(
            "the call brings no token; pass one as Client(token=...) or in LOGITPORT_TOKEN (metadata: "
            '"authorization: Bearer <token>")'
        )

    def _by_token(self, shown: list[str | bytes]) -> Principal:
        assert self._tokens is not None  # noqa: S101 - asked before
        header = shown[0]
        if len(shown) == 1 and isinstance(header, str) and header[: len(_SCHEME)].lower() == _SCHEME:
            grant = self._tokens.by_token(header[len(_SCHEME) :].strip())
            if grant is not None:
                return _principal(grant)
        raise _unknown("token")

    def _by_certificate(self, auth_context: Mapping[str, Iterable[bytes]]) -> Principal:
        names = [
            name.decode(errors="replace")
            for key in ("x509_subject_alternative_name", "x509_common_name")
            for name in auth_context.get(key, ())
        ]
        if not names or not names[0]:
            raise NotAuthenticated(
                "the client certificate has neither a subject alternative name nor a common name; issue one that has"
            )
        grant = self._tokens.by_certificate(names[0]) if self._tokens is not None else None
        if grant is not None:
            return _principal(grant)
        return Principal(f"certificate:{names[0]}", frozenset((APPLY, REGISTER)))


def _principal(grant: Grant) -> Principal:
    if grant.expired or not grant.scopes:
        raise _unknown("token" if grant.sha256 else "certificate")
    return grant.principal


def _unknown(proof: str) -> NotAuthenticated:
    return NotAuthenticated(
        f"the server does not know this {proof}, or it has expired or was revoked; ask the server's operator for one"
    )
