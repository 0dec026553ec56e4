"""Certificates for servers, clients and balancers of tests."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

if TYPE_CHECKING:
    from pathlib import Path

_HERE = (x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1")))


@dataclass(frozen=True)
class CertificateFiles:
    """PEM files of a certificate and its private key."""

    cert: Path
    key: Path


class Authority:
    """A certificate authority. Its own certificate is `ca`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "an authority")])
        own = self._builder(self._name, self._key).add_extension(x509.BasicConstraints(ca=True, path_length=0), True)
        self.ca = folder / "ca.pem"
        self.ca.write_bytes(own.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM))

    def issue(
        self, common: str, *alternatives: x509.GeneralName, expired: bool = False, file: str = ""
    ) -> CertificateFiles:
        named = [x509.NameAttribute(NameOID.COMMON_NAME, common)] if common else []
        key = ec.generate_private_key(ec.SECP256R1())
        return self._issue(x509.Name(named), key, *alternatives, expired=expired, file=file or common)

    def issue_server(self, file: str = "server", *, expired: bool = False) -> CertificateFiles:
        """Issue a certificate for a server on this machine."""
        return self.issue("server", *_HERE, file=file, expired=expired)

    def issue_for(self, key: ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey, file: str) -> CertificateFiles:
        """Issue a certificate for a server on this machine with this key."""
        return self._issue(x509.Name([]), key, *_HERE, file=file)

    def issue_self_signed(self) -> CertificateFiles:
        """Issue a certificate for a server on this machine with the name and the key of this authority."""
        return self._issue(self._name, self._key, *_HERE, file="self-signed")

    def _issue(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey,
        *alternatives: x509.GeneralName,
        file: str,
        expired: bool = False,
    ) -> CertificateFiles:
        builder = self._builder(subject, key, expired=expired)
        if alternatives:
            builder = builder.add_extension(x509.SubjectAlternativeName(alternatives), False)
        pair = CertificateFiles(self._folder / f"{file}.pem", self._folder / f"{file}.key")
        pair.cert.write_bytes(builder.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM))
        pair.key.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        return pair

    def _builder(
        self, name: x509.Name, key: ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey, *, expired: bool = False
    ) -> x509.CertificateBuilder:
        now = datetime.now(timezone.utc)
        return (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=2))
            .not_valid_after(now + timedelta(days=-1 if expired else 1))
        )
