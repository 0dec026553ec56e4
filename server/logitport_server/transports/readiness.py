"""States the addresses of servers that are ready: a line for programs that start them, and a document for clients."""

from __future__ import annotations

import os
import tempfile
from typing import TYPE_CHECKING, NamedTuple

import orjson

from logitport_server.config import StartupError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


class Ready(NamedTuple):
    """A server that is ready.

    Attributes:
        address: that clients call.
        metrics_port: of its metrics; None without them.
    """

    address: str
    metrics_port: int | None


def report(addresses: Sequence[str], document: Path | None) -> None:
    """Write the document, if there is one, and print the addresses in one line.

    Raises:
        StartupError: the document cannot be written.
    """
    if document is not None:
        try:
            _replace(document, orjson.dumps([{"targets": list(addresses), "labels": {}}]) + b"\n")
        except OSError as error:
            raise StartupError(f"--targets-file {document} cannot be written: {error.strerror}") from error
    print(f"logitport listening on {','.join(addresses)}", flush=True)  # noqa: T201 - programs wait for this line


def _replace(path: Path, content: bytes) -> None:
    """Replace a file at once: clients never read half of it."""
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            os.fchmod(descriptor, 0o644)  # addresses are no secret, and other users may run clients
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
