"""Addresses of servers: HOST:PORT, or unix:PATH for a socket of this host."""

from __future__ import annotations

import ipaddress
import re

_UNIX = "unix:"
_MAX_PORT = (1 << 16) - 1
_HOST = re.compile(r"[^\s/,:\[\]]+|\[[^\s/,\[\]]+\]")


def is_socket(address: str) -> bool:
    """Whether the address is a Unix socket."""
    return address.startswith(_UNIX)


def socket_path(address: str) -> str:
    """Return the path of a Unix socket."""
    return address.removeprefix(_UNIX)


def is_local(address: str) -> bool:
    """Whether only this host can reach the address."""
    host = host_of(address)
    if is_socket(address) or host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False  # a host name may resolve to any address


def is_wildcard(address: str) -> bool:
    """Whether the address means all addresses of the host, so that no client can call it."""
    try:
        return not is_socket(address) and ipaddress.ip_address(host_of(address)).is_unspecified
    except ValueError:
        return False


def host_of(address: str) -> str:
    """Return the host of HOST:PORT, without the brackets of IPv6."""
    return address.rpartition(":")[0].strip("[]")


def join(host: str, port: int) -> str:
    """Return HOST:PORT, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"


def checked(address: str) -> str:
    """Return the address if it is HOST:PORT. Raises ValueError."""
    host, separator, port = address.rpartition(":")
    if not (separator and host and _is_port(port)):
        raise ValueError(f"{address!r} is not HOST:PORT; write, for example, 127.0.0.1:50051")
    return address


def checked_or_socket(address: str) -> str:
    """Return the address if it is HOST:PORT or unix:PATH. Raises ValueError."""
    if not is_socket(address):
        return checked(address)
    if not socket_path(address).startswith("/"):
        raise ValueError(f"{address!r} is not unix:PATH with an absolute path; write, for example, unix:/run/lp.sock")
    return address


def checked_advertised(text: str) -> str:
    """Return what a server advertises: HOST or HOST:PORT, with brackets around an IPv6 address. Raises ValueError."""
    try:
        ipaddress.IPv6Address(text)
        text = f"[{text}]"
    except ValueError:
        pass
    host, port = (text, None) if _port(text) is None else text.rsplit(":", 1)
    if not _HOST.fullmatch(host) or (port is not None and not (_is_port(port) and int(port))):
        raise ValueError(f"{text!r} is not HOST or HOST:PORT; write, for example, logits.example:50051")
    if is_wildcard(f"{host}:"):
        raise ValueError(f"{text!r} is not an address of one host; write the name or the address that clients call")
    return text


def advertised(text: str | None, bound: str) -> str:
    """Return the address that clients call.

    Args:
        text: HOST or HOST:PORT, which replaces the host, or all, of `bound`; None for nothing.
        bound: the address that a server listens on.
    """
    if text is None:
        return bound
    return text if names_port(text) else f"{text}:{_port(bound)}"


def has_free_port(address: str) -> bool:
    """Whether HOST:PORT means any free port."""
    return not is_socket(address) and int(_port(address) or 0) == 0


def names_port(text: str) -> bool:
    """Whether the text is HOST:PORT, not HOST."""
    return _port(text) is not None


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdecimal() and int(text) <= _MAX_PORT


def _port(text: str) -> str | None:
    """Return the port of HOST:PORT; None for HOST."""
    _, separator, port = text.rpartition(":")
    return port if separator and not port.endswith("]") else None
