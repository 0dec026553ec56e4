"""The versions that `logitport --version` prints."""

from __future__ import annotations

import importlib.metadata
import platform
from typing import TYPE_CHECKING

from logitport import compiled

if TYPE_CHECKING:
    from collections.abc import Iterator


def versions() -> Iterator[tuple[str, str]]:
    """Yield names and versions. That of the core is "compiled", or "python" where the compiled core does not run."""
    yield "logitport", _version("logitport")
    yield "core", compiled.NAME
    yield "python", platform.python_version()
    for package in ("torch", "grpcio", "protobuf"):
        yield package, _version(package)
    yield "platform", platform.platform()


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
