"""The asynchronous client: registry and `apply`. It has no sessions, because an engine's step is synchronous."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

import grpc.aio

from logitport import calls, trace_context
from logitport.base_client import BaseClient, Elsewhere
from logitport.errors import LogitportError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from logitport.base_client import Call
    from logitport.calls import ApplyResult, LogitsT
    from logitport.connection import Tls
    from logitport.output import ProcessorOutput
    from logitport.payload.signing import PathLike
    from logitport.request import ProcessorLike, ProcessorRef, Request
    from logitport.servers import Server
    from logitport.targets import Target

_Result = TypeVar("_Result")


class AsyncClient(BaseClient):
    """Asynchronous form of `Client`. Each method takes, returns and raises the same as `Client`'s.

    The constructor waits for the addresses of a document, a name or a function. Later reads run on a thread.
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
        super().__init__(grpc.aio, target, token, tls, timeout, max_message_bytes)

    async def register(
        self,
        processor: ProcessorLike,
        *,
        name: str = "",
        replace: bool = False,
        shared: bool = False,
        signing_key: PathLike | None = None,
        dialect: str | None = None,
        lift: bool | None = None,
    ) -> ProcessorRef:
        """See `Client.register`."""
        return await self._call(
            self._register(
                processor,
                name,
                replace=replace,
                shared=shared,
                signing_key=signing_key,
                dialect=dialect,
                lift=lift,
            )
        )

    async def processor(self, name: str) -> ProcessorRef:
        """See `Client.processor`."""
        return await self._call(self._get(name))

    async def processors(self) -> list[ProcessorRef]:
        """See `Client.processors`."""
        return await self._call(self._list())

    async def logs(self, processor: str | ProcessorRef) -> list[ProcessorOutput]:
        """See `Client.logs`. With several servers, it asks any one of them."""
        return await self._call(self._logs(processor if isinstance(processor, str) else processor.digest))

    async def delete(self, name: str) -> tuple[str, ...]:
        """See `Client.delete`."""
        return await self._call(self._delete(name))

    async def unquarantine(self, name: str) -> ProcessorRef:
        """See `Client.unquarantine`."""
        return await self._call(self._unquarantine(name))

    async def apply(
        self, logits: LogitsT, requests: Sequence[Request], *, num_tokens_in_batch: int = 1, check: bool = True
    ) -> ApplyResult[LogitsT]:
        """See `Client.apply`."""
        return await self._call(self._apply(logits, requests, num_tokens_in_batch, check=check))

    async def close(self) -> None:
        """Close the connection."""
        self._closed = True
        for channel in self._servers.close():
            await channel.close()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def _call(self, call: Call[_Result]) -> _Result:
        server = self._any_server()
        try:
            reply = await self._send(server, call)
        except LogitportError as error:
            if not self._may_go_elsewhere(call, error):
                raise
            reply = await self._send_elsewhere(server, call)
        return call.decode(reply)

    async def _send_elsewhere(self, failed: Server, call: Call[Any]) -> Any:
        elsewhere = Elsewhere(self, call)
        while True:
            await asyncio.to_thread(self._servers.refresh)
            failed = self._servers.any(excluded=failed)
            try:
                return await self._send(failed, call)
            except LogitportError as error:
                pause = elsewhere.pause_after(error)
                if pause is None:
                    raise
            await asyncio.sleep(pause)

    async def _send(self, server: Server, call: Call[Any]) -> Any:
        with self._translated_errors(server, call.advice):
            metadata = self._connection.metadata + trace_context.metadata()
            return await call.on(server)(call.message, timeout=self.timeout, metadata=metadata)
