"""A client's connections: TLS, bearer token, gRPC channel options, and the permitted addresses."""

from __future__ import annotations

import ipaddress
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Union

import grpc

from logitport.errors import InvalidArgument

if TYPE_CHECKING:
    from typing_extensions import Self

TOKEN_VARIABLE = "LOGITPORT_TOKEN"  # noqa: S105 - its name, not a token

PathLike = Union[str, "os.PathLike[str]"]

# gRPC itself retries, with backoff and jitter. That is safe because every unary call may be made twice. Not where there
# are several servers: the next attempt should then go to another one.
_SERVICE_CONFIG = json.dumps(
    {
        "methodConfig": [
            {
                "name": [
                    {"service": "logitport.v1.ProcessorRegistry"},
                    {"service": "logitport.v1.LogitProcessing", "method": "Apply"},
                    {"service": "logitport.v1.Admin", "method": "Unquarantine"},
                ],
                "retryPolicy": {
                    "maxAttempts": 4,
                    "initialBackoff": "0.05s",
                    "maxBackoff": "1s",
                    "backoffMultiplier": 3,
                    "retryableStatusCodes": ["UNAVAILABLE"],
                },
            }
        ]
    }
)

# Matches a target without a port: a host name, or an IPv6 address with or without brackets. A target with a scheme
# ("unix:PATH") contains a colon, so it does not match.
_WITHOUT_PORT = re.compile(r"([^:]*|\[[^]]*\]):?|([0-9a-fA-F]*:){2,}[0-9a-fA-F.]*")

# Names of gRPC. Anything else is HOST:PORT. gRPC would retry the resolution of a target of another form without end.
_NAME_OF_GRPC = re.compile(r"(unix|unix-abstract|vsock|dns|ipv4|ipv6):|[a-z0-9+.-]+://")
_HOST_AND_PORT = re.compile(r"([^\s,;/:\[\]]+|\[[^\s,;/\[\]]+\]):([0-9]{1,5})")
_MAX_PORT = (1 << 16) - 1

# Keepalive ping interval and timeout of a channel that has a call in flight.
_KEEPALIVE_MS, _KEEPALIVE_TIMEOUT_MS = 30_000, 10_000


@dataclass(frozen=True)
class Tls:
    """An encrypted connection. All files are PEM.

    Attributes:
        ca: certificates of the authorities that may have signed the server's; None for gRPC's own list. For an https
            document with the servers' addresses, they are trusted in addition to the system's.
        cert: the client's certificate and its chain, where the server requires one.
        key: the private key of `cert`.
        server_name: the name in the server's certificate, if it is not the host of the address, for example because
            the addresses are IP addresses; "" for the host.
    """

    ca: PathLike | None = None
    cert: PathLike | None = None
    key: PathLike | None = None
    server_name: str = ""

    def credentials(self) -> grpc.ChannelCredentials:
        """Make gRPC's credentials. Raises InvalidArgument for an unreadable file, or `cert` without `key`."""
        if not isinstance(self.server_name, str):
            raise InvalidArgument(f"Tls: server_name is {self.server_name!r}; pass text")
        if (self.cert is None) != (self.key is None):
            raise InvalidArgument("Tls: cert and key go together; pass both")
        return grpc.ssl_channel_credentials(_read(self.ca), _read(self.key), _read(self.cert))


@dataclass(frozen=True)
class Connection:
    """Checked settings of a client's channels and calls.

    Attributes:
        credentials: of encrypted channels; None for unencrypted ones.
        metadata: sent with each call.
        server_name: the name in the servers' certificates; "" for the host of each address.
        ca: certificates of the authorities in PEM; None for the system's own list.
    """

    credentials: grpc.ChannelCredentials | None
    metadata: tuple[tuple[str, str], ...]
    server_name: str = ""
    ca: bytes | None = None

    @classmethod
    def prepare(cls, token: str | None, tls: Tls | None) -> Self:
        """Check a client's arguments.

        Raises:
            InvalidArgument: the token cannot be sent, a TLS file cannot be read, or an argument has the wrong type.
        """
        token = os.environ.get(TOKEN_VARIABLE, "") if token is None else token
        if not isinstance(token, str):
            raise InvalidArgument(f"the token is of type {type(token).__name__}; pass text")
        if not (tls is None or isinstance(tls, Tls)):
            raise InvalidArgument(
                f"tls is {tls!r}; pass tls=Tls(), or tls=Tls(ca='ca.pem') for an authority of your own"
            )
        if token and not (token.isascii() and token.isprintable() and " " not in token):
            raise InvalidArgument(
                "the token has spaces, control characters or non-ASCII characters; pass the whole token, on one line"
            )
        metadata = (("authorization", f"Bearer {token}"),) if token else ()
        if tls is None:
            return cls(None, metadata)
        return cls(tls.credentials(), metadata, tls.server_name, _read(tls.ca))

    @property
    def encrypted(self) -> bool:
        """Whether the connections use TLS."""
        return self.credentials is not None

    def check(self, target: str) -> None:
        """Check the address of a server.

        Raises:
            InvalidArgument: it is not one address, or is a URL or a document, or the token would be sent to it
                unencrypted.
        """
        if not isinstance(target, str):
            raise InvalidArgument(f"target is {target!r}; write HOST:PORT or unix:PATH, as text")
        if re.match(r"https?://|file:", target, re.IGNORECASE):
            raise InvalidArgument(
                f"target {target!r} is a URL; write HOST:PORT, and pass tls=Tls(...) for an encrypted connection. A "
                "document with addresses must be the only target"
            )
        if _WITHOUT_PORT.fullmatch(target):
            raise InvalidArgument(f"target {target!r} has no port; write HOST:PORT or [IPV6]:PORT, or unix:PATH")
        if not (_NAME_OF_GRPC.match(target) or _is_host_and_port(target)):
            raise InvalidArgument(
                f"target {target!r} is not one address; write HOST:PORT or [IPV6]:PORT, with a port from 1 to "
                f"{_MAX_PORT}, or unix:PATH"
            )
        if self.metadata and not self.encrypted and not is_local(target):
            raise InvalidArgument(
                f"a token would be sent to {target} unencrypted: pass tls=Tls(...), or unset {TOKEN_VARIABLE} and "
                "token if the server requires none"
            )

    def check_document(self, host: str) -> None:
        """Check the HOST:PORT of a document of addresses that is read without encryption.

        Raises:
            InvalidArgument: there is a token, which a forged document could have sent to any server.
        """
        if self.metadata and not is_local(host):
            raise InvalidArgument(
                f"the document of the servers' addresses is read from {host} unencrypted, and a forged one would have "
                f"the token sent to any server: use https, or unset {TOKEN_VARIABLE} and token if the servers require "
                "none"
            )

    def channel(
        self, target: str, max_message_bytes: int, *, server_name: str = "", retries: bool = True
    ) -> grpc.Channel:
        """Create a channel.

        Args:
            target: the server's address, which `check` has accepted.
            max_message_bytes: the largest message in either direction.
            server_name: the name in the server's certificate, unless `Tls.server_name` is set; "" for the host.
            retries: whether gRPC repeats unary calls at the same address.
        """
        options = channel_options(max_message_bytes, retries=retries)
        if is_local(target):
            # The connection may be unencrypted, so it must not go through a proxy on another machine.
            options.append(("grpc.enable_http_proxy", 0))
        if self.credentials is None:
            return grpc.insecure_channel(target, options=options)
        if server_name := self.server_name or server_name:
            options.append(("grpc.ssl_target_name_override", server_name))
        return grpc.secure_channel(target, self.credentials, options=options)


def channel_options(max_message_bytes: int, *, retries: bool = True) -> list[tuple[str, Any]]:
    """Options of a gRPC channel; `max_message_bytes` is the largest message in either direction."""
    return [
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.max_send_message_length", max_message_bytes),
        *((("grpc.service_config", _SERVICE_CONFIG),) if retries else ()),
        ("grpc.enable_retries", 1),  # without a policy, only of calls that no server has received
        ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
        ("grpc.keepalive_timeout_ms", _KEEPALIVE_TIMEOUT_MS),
        ("grpc.http2.ping_timeout_ms", _KEEPALIVE_TIMEOUT_MS),
        ("grpc.http2.max_pings_without_data", 0),
        # Find a restarted server soon; gRPC's default backoff may wait for two minutes.
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 2000),
    ]


def _is_host_and_port(target: str) -> bool:
    parts = _HOST_AND_PORT.fullmatch(target)
    return parts is not None and 1 <= int(parts[2]) <= _MAX_PORT


def is_local(target: str) -> bool:
    """Whether traffic to the target stays on this machine. False for a name that may resolve to any address."""
    if target.startswith(("unix:", "unix-abstract:")):
        return True
    # "dns://AUTHORITY/..." is not stripped, hence not local: that name server may answer with any address.
    host = re.sub(r"^(dns:(///)?|ipv4:|ipv6:)", "", target)
    if not host.endswith("]"):
        host = host.rpartition(":")[0] or host
    host = host.strip("[]")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _read(path: PathLike | None) -> bytes | None:
    try:
        return None if path is None else Path(path).read_bytes()
    except OSError as error:
        raise InvalidArgument(f"Tls: cannot read {os.fspath(path or '')}: {error.strerror}") from error
