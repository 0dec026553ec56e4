"""Errors of addresses that cannot be bound."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from logitport_server.lifecycle.start_errors import StartupError

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def binding(option: str, address: str) -> Iterator[None]:
    """Convert errors of binding the address of this option to StartupError."""
    try:
        yield
    except (RuntimeError, OSError) as error:
        raise StartupError(
            f"cannot listen on {address}, which is in use or not an address of this machine: {error}; "
            f"choose another one with {option}"
        ) from error
