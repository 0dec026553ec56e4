"""Documents that list the addresses of servers, in a file or at a URL."""

from __future__ import annotations

import http.client
import os
import socket
import ssl
import stat
import threading
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import orjson

from logitport.errors import InvalidArgument, ServerUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from urllib.parse import SplitResult

MAX_BYTES = 1 << 20

_FORM = '[{"targets": ["HOST:PORT"]}], as for Prometheus'
# How much of a reply that is not HTTP is in the error.
_MAX_QUOTED_CHARACTERS = 80
# OpenSSL's codes for a certificate with an unknown authority: X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT,
# _SELF_SIGNED_CERT_IN_CHAIN and _UNABLE_TO_GET_ISSUER_CERT_LOCALLY.
_UNKNOWN_AUTHORITY = (18, 19, 20)


def read_file(path: str) -> list[str]:
    """Return the addresses that a file lists.

    Raises:
        InvalidArgument: the file cannot be read, or is malformed.
    """
    try:
        # A named pipe must not block: a list is read again and again, and one read at a time.
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise InvalidArgument(
                    f"{path} is not a regular file; write the document of the servers' addresses to one, because it "
                    "is read more than once"
                )
            text = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise InvalidArgument(f"cannot read {path}, the document of the servers' addresses: {reason}") from error
    return _parse(text, path)


def fetch(url: str, limit_seconds: float, ca: bytes | None = None) -> list[str]:
    """Return the addresses that a document at an http or https URL lists.

    Follows no redirect, which could lead to an unencrypted document.

    Args:
        url: where it is.
        limit_seconds: time for each attempt to connect, and then until all of the reply has arrived.
        ca: certificates, in PEM, of authorities that are trusted in addition to the system's.

    Raises:
        ServerUnavailable: there is no such reply in time.
        InvalidArgument: the document is malformed.
    """
    deadline = time.monotonic() + limit_seconds
    parts = urlsplit(url)
    late = threading.Event()
    try:
        connection = _connection(parts, limit_seconds, ca)
        try:
            connection.connect()
            with _ended_at(deadline, connection.sock, late):
                text = _get(connection, url, parts)
        finally:
            connection.close()
        if late.is_set():
            raise TimeoutError
    except (OSError, ValueError, http.client.HTTPException) as error:
        reason = f"no whole reply in {limit_seconds:g} s" if late.is_set() else _reason(error)
        raise ServerUnavailable(f"cannot read {url}, the document of the servers' addresses: {reason}") from error
    return _parse(text, url)


def _connection(parts: SplitResult, limit_seconds: float, ca: bytes | None) -> http.client.HTTPConnection:
    host = parts.hostname or ""
    if parts.scheme != "https":
        return http.client.HTTPConnection(host, parts.port, timeout=limit_seconds)
    context = ssl.create_default_context()
    if ca is not None:
        context.load_verify_locations(cadata=ca.decode("ascii", "ignore"))  # comments may have other characters
    return http.client.HTTPSConnection(host, parts.port, timeout=limit_seconds, context=context)


@contextmanager
def _ended_at(deadline: float, connected: socket.socket, late: threading.Event) -> Iterator[None]:
    """Shut a socket down at the deadline, and set `late`.

    A timeout of the socket is for each wait: a server that sends a byte from time to time never exceeds it. The socket
    must be that of the connection before the request: http.client drops it when a reply has no length.
    """

    def end() -> None:
        late.set()
        with suppress(OSError):
            # Not SSLSocket's own method, which another thread must not call during a read.
            socket.socket.shutdown(connected, socket.SHUT_RDWR)

    timer = threading.Timer(max(0.0, deadline - time.monotonic()), end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _get(connection: http.client.HTTPConnection, url: str, parts: SplitResult) -> bytes:
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    connection.request("GET", path, headers={"Accept": "application/json"})
    with connection.getresponse() as reply:
        if reply.status != http.client.OK:
            raise ServerUnavailable(f"cannot read {url}: it answers with status {reply.status}, and not with 200")
        return reply.read(MAX_BYTES + 1)


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError) and error.verify_code in _UNKNOWN_AUTHORITY:
        return f"{error}; pass the certificate of its authority as Tls(ca=...), or set LOGITPORT_TLS"
    if isinstance(error, http.client.HTTPException) and not isinstance(error, OSError):
        return f"the reply is not HTTP ({type(error).__name__}: {str(error)[:_MAX_QUOTED_CHARACTERS]!r})"
    return str(error) or type(error).__name__


def _parse(text: bytes, where: str) -> list[str]:
    """Read a document of Prometheus' file_sd and http_sd. Labels are not used. Raises InvalidArgument."""
    if len(text) > MAX_BYTES:
        raise InvalidArgument(f"{where} has more than {MAX_BYTES} bytes; list fewer addresses")
    try:
        groups = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise InvalidArgument(f"{where} is not JSON ({error}); write {_FORM}") from error
    if not isinstance(groups, list):
        raise InvalidArgument(f"{where} is not a list; write {_FORM}")
    addresses: list[str] = []
    for place, group in enumerate(groups):
        targets = group.get("targets") if isinstance(group, dict) else None
        if not isinstance(targets, list) or not all(isinstance(target, str) for target in targets):
            raise InvalidArgument(f'{where}: element {place} has no list of texts in "targets"; write {_FORM}')
        addresses += targets
    return addresses
