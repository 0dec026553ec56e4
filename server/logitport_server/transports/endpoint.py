"""The server's addresses: binding, TLS, number of connections, and the check that no open server is exposed."""

from __future__ import annotations

import logging
import os
import socket
import ssl
import stat
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import grpc

from logitport_server import addresses
from logitport_server.lifecycle.start_errors import StartupError
from logitport_server.reloaded import Reloaded
from logitport_server.transports.binding import binding
from logitport_server.transports.local_socket import MAX_HANDSHAKES
from logitport_session.resources import descriptors
from logitport_session.trust.principals import SCOPES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from logitport_server.config import ServerConfig

logger = logging.getLogger(__name__)

# Calls and sessions on one connection; further ones wait. A principal may have 64 of each.
_MAX_STREAMS_PER_CONNECTION = 128
# Of a stream: what a message of 1 MiB needs. Of a larger one that is being read, as much is under way at a time.
_UNREAD_BYTES = 1 << 20
# Those that BoringSSL accepts by default, and gRPC has no option for others.
_CURVES = ("secp256r1", "secp384r1")
logger = logging.getLogger(__name__)

# Listening sockets, event loops, the log, the store, the metrics and libraries.
_OWN = 128
# The pidfd of a worker.
_PER_WORKER = 1
# A session's relay. Each may be the only one of its principal, whose process has a channel, a pidfd and a lifeline.
_PER_SESSION = 1 + 3
# Connections have no owner before a call, so they cannot be limited by principal. An engine has one connection; the
# others are for engines that wait for a session, for commands and for health checks. Each takes memory.
_CONNECTIONS_PER_SESSION = 4
# A lower number of sessions must not let a few idle connections keep all others out.
_MIN_CONNECTIONS = 1024


def options(config: ServerConfig) -> list[tuple[str, int]]:
    """Options of the gRPC server: limits of messages, connections and streams, and keepalive pings.

    The pings detect dead connections.
    """
    milliseconds = int(config.keepalive_seconds * 1000)
    return [
        ("grpc.max_receive_message_length", config.max_message_bytes),
        ("grpc.max_send_message_length", config.max_message_bytes),
        ("grpc.so_reuseport", 0),
        ("grpc.max_allowed_incoming_connections", connection_limit(config, descriptors.limit())),
        # A connection has no principal: its streams are limited, because each takes memory before its authorization.
        ("grpc.max_concurrent_streams", _MAX_STREAMS_PER_CONNECTION),
        # What a client may send before its message is read. With its probe, gRPC lets it send 16 MiB or more, also in a
        # stream with a last frame that is being processed.
        ("grpc.http2.bdp_probe", 0),
        ("grpc.http2.lookahead_bytes", _UNREAD_BYTES),
        # Compression is off: logits hardly compress, and a few bytes could expand to a message of the maximum size.
        ("grpc.compression_enabled_algorithms_bitset", 1 << grpc.Compression.NoCompression),
        ("grpc.keepalive_time_ms", milliseconds),
        ("grpc.keepalive_timeout_ms", milliseconds),
        ("grpc.http2.ping_timeout_ms", milliseconds),  # limits the same wait; the default is a minute
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        # Minimum interval of clients' pings. gRPC closes the connection of a client that pings more often. Envoy pings
        # every two seconds (deploy/envoy.yaml): an engine must not wait longer than 5 s for a server that hangs.
        ("grpc.http2.min_ping_interval_without_data_ms", 1_000),
    ]


def check_exposure(config: ServerConfig) -> None:
    """Log how exposed the server's addresses and secret files are.

    Raises:
        StartupError: other machines could call the server without authentication.
    """
    if not addresses.is_local(config.listen):
        if not config.requires_authentication:
            raise StartupError(
                f"--listen {config.listen} can be reached from other machines, but authentication is off: give "
                "--tokens FILE or --tls-client-ca FILE, or listen on 127.0.0.1 or unix:PATH"
            )
        if config.tls_cert is None:
            logger.warning(
                "tokens are sent to --listen %s unencrypted, and can be read and reused on the network: give "
                "--tls-cert and --tls-key, unless a proxy in front of this server terminates TLS",
                config.listen,
            )
    if not config.requires_authentication:
        logger.info(
            "authentication is off: any client that can reach %s has all scopes: %s",
            config.listen,
            ", ".join(SCOPES),
        )
    if config.metrics_listen is not None and not addresses.is_local(config.metrics_listen):
        logger.warning(
            "--metrics-listen %s shows any client that can reach it the names and digests of all principals' "
            "processors, and how much they are used",
            config.metrics_listen,
        )
    for option, path in (("--tls-key", config.tls_key), ("--store-key", config.store_key)):
        with suppress(OSError):  # reported when the file is opened
            if path is not None and path.stat().st_mode & stat.S_IROTH:
                logger.warning("%s %s is secret, and all users can read it; run: chmod o-r %s", option, path, path)


def listen(server: grpc.aio.Server, config: ServerConfig) -> str:
    """Bind `--listen`. Returns the address that clients call.

    Raises:
        StartupError: the address cannot be bound, or a TLS file is invalid.
    """
    credentials = _credentials(config)
    with binding("--listen", config.listen), _private_socket(config):
        if credentials is None:
            port = server.add_insecure_port(config.listen)
        else:
            port = server.add_secure_port(config.listen, credentials)
    if addresses.is_socket(config.listen):
        return config.listen
    bound = f"{config.listen.rpartition(':')[0]}:{port}"
    if config.advertise is None and addresses.is_wildcard(bound):
        logger.warning("clients on other machines cannot call %s: name the host that they call by --advertise", bound)
    elif config.advertise is not None:
        logger.info("listening on %s", bound)
    return addresses.advertised(config.advertise, bound)


@contextmanager
def _private_socket(config: ServerConfig) -> Iterator[None]:
    """Context for binding a Unix socket.

    Checks that no other server listens on it. If authentication is off, only the socket's owner may connect.
    """
    if not addresses.is_socket(config.listen):
        yield
        return
    path = Path(addresses.socket_path(config.listen))
    _check_free(path)
    if config.requires_authentication:
        yield
        return
    previous = os.umask(0o177)
    try:
        yield
    finally:
        os.umask(previous)


def _check_free(path: Path) -> None:
    """Raise FileExistsError if a server listens on the path. gRPC replaces a socket that a killed server left."""
    if path.exists() and not stat.S_ISSOCK(path.stat().st_mode):
        raise FileExistsError(f"{path} is not a socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        if probe.connect_ex(str(path)) == 0:
            raise FileExistsError(f"another server listens on {path}")


def _credentials(config: ServerConfig) -> grpc.ServerCredentials | None:
    if config.tls_cert is None or config.tls_key is None:
        return None
    certificates = _Certificates(config.tls_cert, config.tls_key, config.tls_client_ca)
    return grpc.dynamic_ssl_server_credentials(
        certificates.current,
        certificates.fetch,  # type: ignore[arg-type] # the stubs omit None
        require_client_authentication=config.tls_client_ca is not None,
    )


class _Certificates:
    """The TLS files, reloaded when they change: certificates are renewed more often than servers are restarted.

    Raises:
        StartupError: a file cannot be read, or is invalid.
    """

    def __init__(self, cert: Path, key: Path, client_ca: Path | None) -> None:
        self._cert, self._key, self._client_ca = cert, key, client_ca
        files = [path for path in (cert, key, client_ca) if path is not None]
        self._files = Reloaded("tls", lambda: files, self._read, lambda _: "the TLS files")

    @property
    def current(self) -> grpc.ServerCertificateConfiguration:
        """The certificates that were read last."""
        return self._files.value

    def fetch(self) -> grpc.ServerCertificateConfiguration | None:
        """The certificates if the files have changed, else None. gRPC calls this before each handshake."""
        return self.current if self._files.refresh() else None

    def _read(self) -> grpc.ServerCertificateConfiguration:
        try:
            client_ca = self._client_ca.read_bytes() if self._client_ca is not None else None
            pair = self._key.read_bytes(), self._cert.read_bytes()
        except OSError as error:
            raise StartupError(f"cannot read {error.filename}: {error.strerror}") from error
        self._check()
        return grpc.ssl_server_certificate_configuration([pair], client_ca)

    def _check(self) -> None:
        """Raise StartupError for invalid files. gRPC would fail each handshake instead, without an error message."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            context.load_cert_chain(self._cert, self._key, password="")
        except OSError as error:
            raise StartupError(
                f"--tls-cert {self._cert} and --tls-key {self._key} are not a PEM certificate and its key: {error}"
            ) from error
        _check_type_of_key(self._cert)
        if self._client_ca is not None:
            try:
                context.load_verify_locations(self._client_ca)
            except OSError as error:
                raise StartupError(f"--tls-client-ca {self._client_ca} contains no PEM certificate: {error}") from error


def _check_type_of_key(path: Path) -> None:
    """Raise StartupError if the certificate in the file has a key that fails every handshake of gRPC."""
    from cryptography.hazmat.primitives.asymmetric import ec, rsa  # 7 MB that a server without TLS does not need
    from cryptography.x509 import load_pem_x509_certificate

    try:
        key = load_pem_x509_certificate(path.read_bytes()).public_key()
    except ValueError:  # a form that OpenSSL reads
        return
    if isinstance(key, rsa.RSAPublicKey):
        return
    kind = (
        key.curve.name if isinstance(key, ec.EllipticCurvePublicKey) else type(key).__name__.removesuffix("PublicKey")
    )
    if kind not in _CURVES:
        raise StartupError(
            f"--tls-cert {path} has a key of the type {kind}, which gRPC's TLS does not accept; issue a certificate "
            "for a key of RSA, or of the curve P-256 or P-384"
        )


def connection_limit(config: ServerConfig, descriptors: int) -> int:
    """The number of connections to accept.

    `descriptors` is the number that the process may have open.

    Returns:
        `_CONNECTIONS_PER_SESSION` for each session, at least `_MIN_CONNECTIONS`. Less if they would leave too few
        descriptors for sessions and workers; then a warning is logged. At least a quarter of the descriptors is for
        connections.
    """
    reserve = _OWN + config.max_sessions * _PER_SESSION
    if config.local_transport:
        reserve += MAX_HANDSHAKES
    if config.has_workers:
        reserve += config.max_workers * _PER_WORKER
    most = max(_MIN_CONNECTIONS, _CONNECTIONS_PER_SESSION * config.max_sessions)
    if most + reserve <= descriptors:
        return most
    accepted = max(1, min(most, max(descriptors - reserve, descriptors // 4)))
    logger.warning(
        "the limit of %d open files is too low for %d connections and the %d files that --max-sessions-per-principal "
        "and --max-workers may need: %d connections are accepted; raise the limit to %d (ulimit -n, or LimitNOFILE= "
        "of systemd), or lower these options",
        descriptors,
        most,
        reserve,
        accepted,
        most + reserve,
    )
    return accepted
