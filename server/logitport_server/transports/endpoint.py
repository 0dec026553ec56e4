"""Where the server listens, how that is protected, and what it refuses to expose."""

from __future__ import annotations

import ipaddress
import logging
import os
import socket
import ssl
import stat
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import grpc

from logitport_server.config import StartupError
from logitport_server.principals import SCOPES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from logitport_server.config import ServerConfig

logger = logging.getLogger(__name__)

_UNIX = "unix:"


def options(config: ServerConfig) -> list[tuple[str, int]]:
    """Options of the gRPC server: limits on messages, and pings that find connections whose other end is gone."""
    milliseconds = int(config.keepalive_seconds * 1000)
    return [
        ("grpc.max_receive_message_length", config.max_message_bytes),
        ("grpc.max_send_message_length", config.max_message_bytes),
        ("grpc.so_reuseport", 0),
        ("grpc.max_allowed_incoming_connections", config.max_connections),
        # Logits hardly compress, and a few bytes could stand for a message of the greatest size.
        ("grpc.compression_enabled_algorithms_bitset", 1 << grpc.Compression.NoCompression),
        ("grpc.keepalive_time_ms", milliseconds),
        ("grpc.keepalive_timeout_ms", milliseconds),
        ("grpc.http2.ping_timeout_ms", milliseconds),  # it bounds the same wait; a minute by default
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        # What clients may ping; more often is taken for an attack, and ends their connection.
        ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ]


def check_exposure(config: ServerConfig) -> None:
    """Raises StartupError if whoever reaches this machine could call; tells what those may do who can."""
    if not _is_local(config.listen):
        if not config.asks:
            raise StartupError(
                f"--listen {config.listen} can be reached from other machines, and nobody would be asked who they are: "
                "give --tokens FILE or --tls-client-ca FILE, or listen on 127.0.0.1 or unix:PATH"
            )
        if config.tls_cert is None:
            logger.warning(
                "tokens reach --listen %s unencrypted, and who reads one can use it: give --tls-cert and --tls-key, "
                "unless a proxy before this server does TLS",
                config.listen,
            )
    if not config.asks:
        logger.info(
            "nobody is asked who they are, so that whoever reaches %s has every scope: %s",
            config.listen,
            ", ".join(SCOPES),
        )
    if config.metrics_listen is not None and not _is_local(config.metrics_listen):
        logger.warning(
            "--metrics-listen %s tells whoever can reach it the names and digests of all principals' processors, and "
            "how much they are used",
            config.metrics_listen,
        )


def listen(server: grpc.aio.Server, config: ServerConfig) -> str:
    """Bind `--listen`; the address that clients connect to.

    Raises:
        StartupError: it cannot be had, or a file of TLS is wrong.
    """
    credentials = _credentials(config)
    with binding("--listen", config.listen), _private_socket(config):
        if credentials is None:
            port = server.add_insecure_port(config.listen)
        else:
            port = server.add_secure_port(config.listen, credentials)
    return config.listen if _is_unix(config.listen) else f"{config.listen.rpartition(':')[0]}:{port}"


@contextmanager
def binding(option: str, address: str) -> Iterator[None]:
    """Raises StartupError where binding the address of this option fails."""
    try:
        yield
    except (RuntimeError, OSError) as error:
        raise StartupError(
            f"cannot listen on {address}, which is taken or not of this machine: {error}; "
            f"choose another address with {option}"
        ) from error


def _is_unix(address: str) -> bool:
    return address.startswith(_UNIX)


def _is_local(address: str) -> bool:
    host = address.rpartition(":")[0].strip("[]")
    if _is_unix(address) or host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False  # a name may stand for any address


@contextmanager
def _private_socket(config: ServerConfig) -> Iterator[None]:
    """A Unix socket that nobody else serves; only its owner may connect where nobody is asked who they are."""
    if not _is_unix(config.listen):
        yield
        return
    path = Path(config.listen.removeprefix(_UNIX))
    _check_free(path)
    if config.asks:
        yield
        return
    before = os.umask(0o177)
    try:
        yield
    finally:
        os.umask(before)


def _check_free(path: Path) -> None:
    """Raises FileExistsError if somebody listens there; gRPC takes over a socket that a killed server left."""
    if path.exists() and not stat.S_ISSOCK(path.stat().st_mode):
        raise FileExistsError(f"{path} is no socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        if probe.connect_ex(str(path)) == 0:
            raise FileExistsError(f"another server listens on {path}")


def _credentials(config: ServerConfig) -> grpc.ServerCredentials | None:
    if config.tls_cert is None or config.tls_key is None:
        return None
    certificates = _Certificates(config.tls_cert, config.tls_key, config.tls_client_ca)
    return grpc.dynamic_ssl_server_credentials(
        certificates.current,
        certificates.fetch,  # type: ignore[arg-type] # the stubs leave out None
        require_client_authentication=config.tls_client_ca is not None,
    )


class _Certificates:
    """The files of TLS, read again when they change: certificates are renewed more often than servers are restarted.

    Raises:
        StartupError: a file cannot be read.
    """

    def __init__(self, cert: Path, key: Path, client_ca: Path | None) -> None:
        self._cert, self._key, self._client_ca = cert, key, client_ca
        self._seen = self._look()
        self.current = self._read()

    def fetch(self) -> grpc.ServerCertificateConfiguration | None:
        """What gRPC asks before each handshake: the files if they are others now, else None."""
        try:
            seen = self._look()
            if seen == self._seen:
                return None
            self._seen = seen
            self.current = self._read()
        except StartupError as error:
            logger.error("TLS is as it was: %s", error)
            return None
        logger.info("read the files of TLS again")
        return self.current

    def _look(self) -> list[int]:
        try:
            return [path.stat().st_mtime_ns for path in (self._cert, self._key, self._client_ca) if path is not None]
        except OSError as error:
            raise StartupError(f"cannot read {error.filename}: {error.strerror}") from error

    def _read(self) -> grpc.ServerCertificateConfiguration:
        self._check()
        try:
            client_ca = self._client_ca.read_bytes() if self._client_ca is not None else None
            return grpc.ssl_server_certificate_configuration(
                [(self._key.read_bytes(), self._cert.read_bytes())], client_ca
            )
        except OSError as error:
            raise StartupError(f"cannot read {error.filename}: {error.strerror}") from error

    def _check(self) -> None:
        """What gRPC would find wrong at each handshake, and not tell."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            context.load_cert_chain(self._cert, self._key, password="")
        except OSError as error:
            raise StartupError(
                f"--tls-cert {self._cert} and --tls-key {self._key} are no PEM certificate and the key of it: {error}"
            ) from error
        if self._client_ca is not None:
            try:
                context.load_verify_locations(self._client_ca)
            except OSError as error:
                raise StartupError(f"--tls-client-ca {self._client_ca} has no PEM certificate: {error}") from error
