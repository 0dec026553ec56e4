"""The server's side of `logitport_testing`, which finds it by an entry point."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from logitport_runner.in_process import InProcessRunner
from logitport_runner.in_thread import ThreadServer

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from logitport_testing.runner import Where

__all__ = ["open_runner", "serve_in_thread"]


def open_runner(
    where: Where = "here", options: Mapping[str, Any] | None = None, tokenizers: Mapping[str, Path] | None = None
) -> InProcessRunner:
    """Open a runner of chains; see `logitport_testing.runner.Backend`."""
    return InProcessRunner(where, options or {}, tokenizers or {})


def serve_in_thread(options: Mapping[str, Any] | None = None) -> ThreadServer:
    """Start a server on a thread; see `logitport_testing.runner.Backend`."""
    return ThreadServer(options or {})
