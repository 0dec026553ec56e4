"""Finds environment variables with logitport's prefix that nothing reads; most of them are misspelt."""

from __future__ import annotations

import difflib
import os
import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

PREFIX = "LOGITPORT_"

# Variables that the SDK and its hooks read. A server also reads one for each of its options.
OF_THE_SDK = frozenset(
    PREFIX + name
    for name in (
        *("TARGET", "TOKEN", "TLS", "TLS_SERVER_NAME", "STEP_TIMEOUT_SECONDS"),
        *("DEFAULT_PROCESSORS", "REQUEST_PROCESSORS", "REQUEST_KEYS", "TENANT"),
        *("PROGRAMS", "PROGRAM_KEYS"),
        *("CUSTOM_OPS", "RECORD", "REPORT", "PURE_PYTHON"),
    )
)

# Kubernetes sets variables in each container for every service of its namespace. A service may be named logitport.
_KUBERNETES = re.compile(rf"{PREFIX}(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_[A-Z]+(_\w+)?)")
_KUBERNETES_PORT = re.compile(r"(tcp|udp|sctp)://")

# How similar two names must be for one to be proposed for the other (difflib's cutoff).
_MIN_SIMILARITY = 0.7


class Unread(NamedTuple):
    """A variable that is set and that nothing reads.

    Attributes:
        name: its name.
        nearest: the known name that was probably meant; "" if none is similar.
    """

    name: str
    nearest: str

    def __str__(self) -> str:
        meant = f"; set {self.nearest} if that is what was meant" if self.nearest else ""
        return f"{self.name} is set in the environment, and nothing here reads it{meant}"


def unread(known: Collection[str], environment: Mapping[str, str] = os.environ) -> list[Unread]:
    """List the variables with logitport's prefix that are not among the known ones, sorted by name."""
    names = [name.removeprefix(PREFIX) for name in known]
    found = []
    for name, value in sorted(environment.items()):
        if not name.startswith(PREFIX) or name in known or _is_from_kubernetes(name, value):
            continue
        near = nearest(name.removeprefix(PREFIX), names)
        found.append(Unread(name, PREFIX + near if near else ""))
    return found


def nearest(name: str, known: Sequence[str]) -> str:
    """Return the known name that was probably meant; "" if none is similar."""
    if len(name) > 2 * max(map(len, known), default=0):
        return ""  # it is similar to none, and difflib would index each of its characters
    near = difflib.get_close_matches(name, known, 1, _MIN_SIMILARITY)
    return near[0] if near else ""


def _is_from_kubernetes(name: str, value: str) -> bool:
    return bool(_KUBERNETES.fullmatch(name) or (name.endswith("_PORT") and _KUBERNETES_PORT.match(value)))
