"""Sends states to the service manager that has started the server, as sd_notify(3) does."""

from __future__ import annotations

import os
import socket
from contextlib import suppress


def notify(state: str) -> None:
    """Send a state, such as READY=1. Does nothing without a service manager, and never blocks."""
    if address := os.environ.get("NOTIFY_SOCKET"):
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
            abstract = address.startswith("@")
            channel.sendto(state.encode(), socket.MSG_DONTWAIT, f"\0{address[1:]}" if abstract else address)
