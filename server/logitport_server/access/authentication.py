"""Authentication: checks a token (`TokenFile.by_token`) or a client certificate, and returns its principal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logitport.errors import AccessDenied
from logitport_session.trust.principals import ANONYMOUS, APPLY, REGISTER, Principal

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from logitport_server.access.token_file import Grant, TokenFile

_SCHEME = "bearer "


class Authenticator:
    """Authenticates callers by token or client certificate; if neither is required, all callers are `ANONYMOUS`.

    A token takes precedence: if it is invalid, the call is refused, whatever the certificate. A certificate that is
    signed by the operator's authority but listed on no line of the file is the principal `certificate:<name>`, with the
    scopes apply and register.

    Args:
        tokens: the operator's tokens and certificates, if there is a file of them.
        certificates: whether connections need a client certificate.
    """

    def __init__(self, tokens: TokenFile | None, *, certificates: bool) -> None:
        self._tokens = tokens
        self._certificates = certificates

    @property
    def required(self) -> bool:
        """Whether callers must authenticate."""
        return self._tokens is not None or self._certificates

    def refresh(self) -> bool:
        """Read the file of tokens again if it has changed. Returns whether calls must be authenticated again."""
        return self._tokens is not None and self._tokens.refresh()

    def grants(self, name: str, scope: str) -> bool:
        """Whether the principal of this name has a scope now.

        Needed for principals that do not call: code may be used by other principals than its author.
        """
        if not self.required:
            return name == ANONYMOUS.name and ANONYMOUS.may(scope)
        return self._tokens is not None and scope in self._tokens.scopes_of(name)

    def authenticate(
        self, metadata: Iterable[tuple[str, str | bytes]], auth_context: Mapping[str, Iterable[bytes]]
    ) -> Principal:
        """Identify the caller.

        Args:
            metadata: metadata of the call.
            auth_context: properties of the client's certificate, as gRPC verified them.

        Raises:
            AccessDenied: no valid token or certificate. The message does not tell whether it is wrong or expired.
        """
        if not self.required:
            return ANONYMOUS
        headers = [value for key, value in metadata if key == "authorization"]
        if headers and self._tokens is not None:
            return self._by_token(headers)
        if self._certificates:
            return self._by_certificate(auth_context)
        raise AccessDenied(
            "the call has no token; pass one as Client(token=...) or in LOGITPORT_TOKEN (metadata: "
            '"authorization: Bearer <token>")',
            code=AccessDenied.NOT_AUTHENTICATED,
        )

    def _by_token(self, headers: list[str | bytes]) -> Principal:
        assert self._tokens is not None  # noqa: S101 - the caller has checked it
        header = headers[0]
        if len(headers) == 1 and isinstance(header, str) and header[: len(_SCHEME)].lower() == _SCHEME:
            grant = self._tokens.by_token(header[len(_SCHEME) :].strip())
            if grant is not None:
                return _principal(grant)
        raise _refused("token")

    def _by_certificate(self, auth_context: Mapping[str, Iterable[bytes]]) -> Principal:
        names = [
            name.decode(errors="replace")
            for key in ("x509_subject_alternative_name", "x509_common_name")
            for name in auth_context.get(key, ())
        ]
        if not names or not names[0]:
            raise AccessDenied(
                "the client certificate has no subject alternative name and no common name; issue one with either",
                code=AccessDenied.NOT_AUTHENTICATED,
            )
        grant = self._tokens.by_certificate(names[0]) if self._tokens is not None else None
        if grant is not None:
            return _principal(grant)
        return Principal(f"certificate:{names[0]}", frozenset((APPLY, REGISTER)))


def _principal(grant: Grant) -> Principal:
    if grant.expired or not grant.scopes:
        raise _refused("token" if grant.sha256 else "certificate")
    return grant.principal


def _refused(credential: str) -> AccessDenied:
    return AccessDenied(
        f"this {credential} is unknown, expired or revoked; ask the server's operator for a valid one",
        code=AccessDenied.NOT_AUTHENTICATED,
    )
