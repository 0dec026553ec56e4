"""Base of the clients whose calls block."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from logitport import calls, trace_context
from logitport.base_client import BaseClient

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

    from logitport.base_client import Call
    from logitport.connection import Tls
    from logitport.servers import Server
    from logitport.targets import Target


class BlockingClient(BaseClient):
    """Sends calls over channels of `grpc`, and closes the channels.

    Args:
        target, token, tls, timeout, max_message_bytes: see `Client`.

    Raises:
        InvalidArgument, ServerUnavailable: see `Client`.
    """

    def __init__(
        self,
        target: Target,
        *,
        token: str | None = None,
        tls: Tls | None = None,
        timeout: float = calls.DEFAULT_TIMEOUT,
        max_message_bytes: int = calls.DEFAULT_MAX_MESSAGE_BYTES,
    ) -> None:
        super().__init__(target, token, tls, timeout, max_message_bytes)

    def close(self) -> None:
        """Close the connections."""
        self._closed = True
        for channel in self._servers.close():
            channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _send(self, server: Server, call: Call[Any]) -> Any:
        """Send a call to this server, and return its reply. Raises LogitportError."""
        with self._translated_errors(server, call.advice):
            metadata = self._connection.metadata + trace_context.metadata()
            return call.on(server)(call.message, timeout=self.timeout, metadata=metadata)
