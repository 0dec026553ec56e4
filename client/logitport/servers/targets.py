"""The addresses of a client's servers: where they are listed, and when the list is read again."""

from __future__ import annotations

import logging
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Union
from urllib.parse import unquote, urlsplit

from logitport.errors import InvalidArgument, LogitportError, ServerUnavailable
from logitport.servers import documents

logger = logging.getLogger(__name__)

# One address; several, as a sequence or separated by commas; a name in DNS; a document; or a function.
Target = Union[str, "os.PathLike[str]", Sequence[str], Callable[[], Union[str, Sequence[str]]]]

# How long a list may take to be read. After that the read has failed, although a name or a function may still answer.
_READ_SECONDS = 5.0
# How long a caller waits for a list that is read again. It has the last one.
_WAIT_SECONDS = 0.5
# How old a list must be to be read again. A server that many sessions have lost must not cause a read for each.
_MIN_AGE_SECONDS = 3.0

_FILE = re.compile(r"file:(?://([^/]*))?(.*)", re.DOTALL | re.IGNORECASE)
_URL = re.compile(r"https?://", re.IGNORECASE)
# A name for all of its addresses. "dns://AUTHORITY/NAME" is left to gRPC, which alone can query that name server.
_DNS = re.compile(r"dns:(?:///)?(\[[^]]*\]|[^/:]+)(?::(\d+))?")
# Names for several addresses that gRPC itself understands. It calls the addresses in order.
_LIST_OF_GRPC = ("ipv4:", "ipv6:")
_DEFAULT_PORT = "443"  # gRPC's, for a name without a port


@dataclass(frozen=True)
class Address:
    """Where one server is.

    Attributes:
        target: HOST:PORT, unix:PATH, or another name that gRPC understands.
        server_name: the name in the server's certificate; "" for the host of `target`.
    """

    target: str
    server_name: str = ""


@dataclass(frozen=True)
class AddressSource:
    """Where addresses are listed.

    Attributes:
        text: the target as the client received it, for messages.
        read: returns the addresses now. Raises LogitportError.
        changes: whether the addresses may change.
        name: the name that is resolved to addresses; "" for other sources.
        unencrypted_host: HOST:PORT of a document that is read without encryption; "" for other sources.
    """

    text: str
    read: Callable[[], Sequence[Address]]
    changes: bool = True
    name: str = ""
    unencrypted_host: str = ""


def source_of(target: Target, ca: bytes | None = None) -> AddressSource:
    """Return where the addresses of a target are listed.

    Args:
        target: the target.
        ca: certificates, in PEM, of authorities that may have signed the certificate of a document's server, in
            addition to the system's.

    Raises:
        InvalidArgument: it is no target.
    """
    if isinstance(target, os.PathLike):
        return _file(os.fspath(target))
    if callable(target):
        return _function(target)
    if not isinstance(target, str):
        if not isinstance(target, Sequence) or isinstance(target, bytes):
            raise InvalidArgument(
                f"target is {target!r}; write HOST:PORT or unix:PATH, as text; several addresses; a document with "
                "addresses; or a function that returns addresses"
            )
        for address in target:
            _check_text(address, "target")
        listed = [Address(address) for address in target]
        return AddressSource(", ".join(map(str, target)), lambda: listed, changes=False)
    if (file := _FILE.fullmatch(target)) is not None:
        return _url_of_file(target, file[1] or "", file[2])
    if _URL.match(target):
        return _url(target, ca)
    if (name := _DNS.fullmatch(target)) is not None:
        return _name(target, name[1], name[2] or _DEFAULT_PORT)
    parts = [target] if target.startswith(_LIST_OF_GRPC) else [part.strip() for part in target.split(",")]
    single = [Address(part) for part in parts]
    return AddressSource(target, lambda: single, changes=False)


class AddressList:
    """The addresses of a source, as they were last read. Safe to use from several threads.

    Args:
        source: where they are listed.
        check: raises InvalidArgument for an address that must not be used.
        clock: seconds of a clock that only advances.

    Raises:
        InvalidArgument: the list is malformed or empty, its file cannot be read, or an address is refused.
        ServerUnavailable: a name cannot be resolved, or a document or function has failed.
    """

    def __init__(
        self, source: AddressSource, check: Callable[[str], object], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._source = source
        self._check = check
        self._clock = clock
        self._lock = threading.Lock()
        # A read that has not ended, also one that takes too long: a name or a function cannot be interrupted.
        self._reading: threading.Thread | None = None
        self.addresses: tuple[Address, ...] = ()
        self._read_first()
        self._read_at = clock()

    @property
    def text(self) -> str:
        """The target as the client received it, for messages."""
        return self._source.text

    @property
    def single(self) -> bool:
        """Whether there is one address, and the list cannot change."""
        return not self._source.changes and len(self.addresses) == 1

    def refresh(self) -> None:
        """Read the list again, unless it is new or is being read. Keeps the last list on an error.

        Waits for a short time. A slower read goes on in the background: the caller may be a step of an engine.
        """
        if not self._source.changes:
            return
        with self._lock:
            is_read = self._reading is not None and self._reading.is_alive()
            if is_read or self._clock() - self._read_at < _MIN_AGE_SECONDS:
                return
            self._read_at = self._clock()
            self._reading = reading = _thread(self._replace)
        reading.join(_WAIT_SECONDS)

    def _read_first(self) -> None:
        """Read the list. Raises the errors of `_read`, and ServerUnavailable if it takes too long."""
        results: list[tuple[Address, ...] | BaseException] = []

        def read() -> None:
            try:
                results.append(self._read())
            except BaseException as error:  # noqa: BLE001 - raised by the caller's thread
                results.append(error)

        if not self._source.changes:
            self.addresses = self._read()
            return
        self._reading = _thread(read)
        self._reading.join(_READ_SECONDS)
        if not results:
            raise ServerUnavailable(
                f"{self.text}, the list of the servers' addresses, was not read in {_READ_SECONDS} s"
            )
        (result,) = results
        if isinstance(result, BaseException):
            raise result
        self.addresses = result

    def _replace(self) -> None:
        try:
            addresses = self._read()
        except LogitportError as error:
            logger.warning(
                "%s; the last addresses stay in use: %s", error, ", ".join(address.target for address in self.addresses)
            )
            return
        if set(addresses) != set(self.addresses):
            logger.info("%s now lists %s", self.text, ", ".join(address.target for address in addresses))
        self.addresses = addresses

    def _read(self) -> tuple[Address, ...]:
        addresses = tuple(dict.fromkeys(self._source.read()))
        if not addresses:
            raise InvalidArgument(f"{self.text or 'target'} lists no address; list HOST:PORT or unix:PATH")
        for address in addresses:
            try:
                self._check(address.target)
            except InvalidArgument as error:
                if self._source.changes:
                    raise InvalidArgument(f"{self.text}: {error}") from None
                raise
        return addresses


def _file(path: str) -> AddressSource:
    return AddressSource(path, lambda: _listed(documents.read_file(path)))


def _url_of_file(target: str, host: str, path: str) -> AddressSource:
    if host.lower() not in ("", "localhost") or not path:
        raise InvalidArgument(
            f"target {target!r} names no file of this machine; write file:/PATH, file:///PATH, or file:PATH for one in "
            "the working directory"
        )
    return _file(unquote(path))


def _url(url: str, ca: bytes | None) -> AddressSource:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port or 80
    except ValueError as error:
        raise InvalidArgument(f"target {url!r} is not a valid URL: {error}") from error
    if not host or (parts.path in ("", "/") and not parts.query):
        raise InvalidArgument(
            f"target {url!r} is a URL; write HOST:PORT, and pass tls=Tls(...) for an encrypted connection. For a "
            "document with addresses, write its whole URL"
        )
    if parts.username is not None or parts.password is not None:
        raise InvalidArgument(f"the URL of a document on {host} has a user name or password; leave it out")
    unencrypted = "" if parts.scheme == "https" else f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return AddressSource(url, lambda: _listed(documents.fetch(url, _READ_SECONDS, ca)), unencrypted_host=unencrypted)


def _listed(targets: Sequence[str]) -> list[Address]:
    return [Address(target) for target in targets]


def _thread(work: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=work, name="logitport-addresses", daemon=True)
    thread.start()
    return thread


def _name(target: str, host: str, port: str) -> AddressSource:
    def read() -> Sequence[Address]:
        try:
            found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
        except (OSError, ValueError, OverflowError) as error:
            raise ServerUnavailable(
                f"cannot resolve {target}: {error}; check the name, and this machine's DNS"
            ) from error
        # One family: a server with addresses of both would count as two.
        found = [one for one in found if one[0] == found[0][0]]
        hosts = [f"[{address[0]}]" if family is socket.AF_INET6 else address[0] for family, *_, address in found]
        return [Address(f"{one}:{port}", host.strip("[]")) for one in hosts]

    return AddressSource(target, read, name=target)


def _check_text(address: object, where: str) -> str:
    """Return an address that is text. Raises InvalidArgument."""
    if not isinstance(address, str):
        raise InvalidArgument(f"{where} has the address {address!r}; write HOST:PORT or unix:PATH, as text")
    return address


def _function(function: Callable[[], str | Sequence[str]]) -> AddressSource:
    name = getattr(function, "__qualname__", type(function).__name__)
    text = f"the function {name}"

    def read() -> Sequence[Address]:
        try:
            found = function()
            parts = found.split(",") if isinstance(found, str) else list(found)
        except LogitportError:
            raise
        except Exception as error:
            raise ServerUnavailable(
                f"{text} of the servers' addresses raised {type(error).__name__}: {error}"
            ) from error
        return [Address(_check_text(part, text).strip()) for part in parts]

    return AddressSource(text, read)
