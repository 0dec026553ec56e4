"""Addresses that servers listen on, and those that they advertise."""

from __future__ import annotations

import pytest

from logitport_server import addresses


@pytest.mark.parametrize(
    ("advertise", "bound", "address"),
    [
        (None, "127.0.0.1:5", "127.0.0.1:5"),
        ("logits.example", "0.0.0.0:5", "logits.example:5"),
        ("logits.example:6", "0.0.0.0:5", "logits.example:6"),
        ("[fd00::1]", "[::]:5", "[fd00::1]:5"),
        ("[fd00::1]:6", "[::]:5", "[fd00::1]:6"),
    ],
)
def test_what_clients_call(advertise: str | None, bound: str, address: str) -> None:
    assert addresses.advertised(advertise, bound) == address


def test_an_ipv6_address_without_brackets() -> None:
    """As the downward API of Kubernetes gives the address of a pod."""
    assert addresses.checked_advertised("fd00::1") == "[fd00::1]"


@pytest.mark.parametrize(
    "text",
    [
        *("", ":5", "a:", "a:0", "a:65536", "a:x", "a,b", "a b", "a/b", "unix:/a", "http://a"),
        *("0.0.0.0", "0.0.0.0:5", "::", "[::]:5", "[fd00::1", "fd00::1]:5"),
    ],
)
def test_what_cannot_be_advertised(text: str) -> None:
    with pytest.raises(ValueError, match="is not"):
        addresses.checked_advertised(text)


@pytest.mark.parametrize(
    ("address", "local", "wildcard"),
    [
        ("127.0.0.2:5", True, False),
        ("[::1]:5", True, False),
        ("localhost:5", True, False),
        ("unix:/a", True, False),
        ("0.0.0.0:5", False, True),
        ("[::]:5", False, True),
        ("10.0.0.1:5", False, False),
        ("a.example:5", False, False),
    ],
)
def test_who_can_reach_it(address: str, local: bool, wildcard: bool) -> None:
    assert (addresses.is_local(address), addresses.is_wildcard(address)) == (local, wildcard)
