"""The asynchronous client: registry and `apply`. It has no sessions, because an engine's step is synchronous."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import grpc

from logitport import calls
from logitport.connection import Connection
from logitport_proto import processing_pb2_grpc, registry_pb2, registry_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from logitport.calls import ApplyResult
    from logitport.connection import Tls
    from logitport.payload.signing import PathLike
    from logitport.request import ProcessorLike, ProcessorRef, Request


class AsyncClient:
    """Asynchronous form of `Client`. Each method takes, returns and raises the same as `Client`'s."""

    def __init__(
        self,
        target: str,
        *,
        token: str | None = None,
        tls: Tls | None = None,
        timeout: float = calls.DEFAULT_TIMEOUT,
        max_message_bytes: int = calls.DEFAULT_MAX_MESSAGE_BYTES,
    ) -> None:
        self.target = target
        self.timeout = calls.seconds(timeout, "timeout")
        self._closed = False
        self._connection = Connection.prepare(target, token, tls)
        self._channel = self._connection.aio_channel(calls.count(max_message_bytes, "max_message_bytes", 1))
        self._registry = registry_pb2_grpc.ProcessorRegistryStub(self._channel)
        self._processing = processing_pb2_grpc.LogitProcessingStub(self._channel)

    async def register(
        self,
        processor: ProcessorLike,
        *,
        name: str = "",
        replace: bool = False,
        shared: bool = False,
        signing_key: PathLike | None = None,
        dialect: str | None = None,
    ) -> ProcessorRef:
        """See `Client.register`."""
        message = calls.register_request(
            processor, name, replace=replace, shared=shared, signing_key=signing_key, dialect=dialect
        )
        return calls.refs([(await self._call(self._registry.Register, message)).processor])[0]

    async def processor(self, name: str) -> ProcessorRef:
        """See `Client.processor`."""
        message = calls.message(registry_pb2.GetRequest, processor=name)
        return calls.refs([(await self._call(self._registry.Get, message)).processor])[0]

    async def processors(self) -> list[ProcessorRef]:
        """See `Client.processors`."""
        return calls.refs((await self._call(self._registry.List, registry_pb2.ListRequest())).processors)

    async def delete(self, name: str) -> tuple[str, ...]:
        """See `Client.delete`."""
        return tuple(
            (await self._call(self._registry.Delete, calls.message(registry_pb2.DeleteRequest, processor=name))).names
        )

    async def unquarantine(self, name: str) -> ProcessorRef:
        """See `Client.unquarantine`."""
        message = calls.message(registry_pb2.UnquarantineRequest, processor=name)
        return calls.refs([(await self._call(self._registry.Unquarantine, message)).processor])[0]

    async def apply(
        self, logits: Any, requests: Sequence[Request], *, num_tokens_in_batch: int = 1, check: bool = True
    ) -> ApplyResult:
        """See `Client.apply`."""
        message = calls.apply_request(logits, requests, num_tokens_in_batch)
        return calls.apply_result(await self._call(self._processing.Apply, message), logits, check=check)

    async def close(self) -> None:
        """Close the connection."""
        self._closed = True
        await self._channel.close()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def _call(self, method: Any, message: Any) -> Any:
        if self._closed:
            raise calls.client_closed(self.target)
        try:
            return await method(message, timeout=self.timeout, metadata=self._connection.metadata)
        except grpc.RpcError as error:
            raise calls.translate(error, self.target, encrypted=self._connection.encrypted) from None
