"""The lower bound of gRPC: a stream of bytes in both directions, without parsing at either end.

Run as a script, it is the server, with grpc.aio like logitport's. The first frame of a stream sets the reply to all
later frames, so that frames and replies have the sizes of a real step.
"""

from __future__ import annotations

import asyncio
import queue
from typing import TYPE_CHECKING, Any

import grpc

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

_SERVICE, _METHOD = "benchmarks.Echo", "Echo"
_OPTIONS = [("grpc.max_receive_message_length", 256 << 20), ("grpc.max_send_message_length", 256 << 20)]


class EchoStream:
    """The client's end: synchronous, with a queue, like a logitport session over gRPC."""

    def __init__(self, target: str, reply: bytes) -> None:
        self._channel = grpc.insecure_channel(target, options=_OPTIONS)
        self._frames: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        call: Any = self._channel.stream_stream(f"/{_SERVICE}/{_METHOD}")
        self._replies = call(self._outgoing())
        self.exchange(reply)

    def exchange(self, frame: bytes) -> bytes:
        """Send, and wait for the reply."""
        self.send(frame)
        return self.receive()

    def send(self, frame: bytes) -> None:
        """Send, and return at once."""
        self._frames.put(frame)

    def receive(self) -> bytes:
        """Wait for the reply."""
        reply: bytes = next(self._replies)
        return reply

    def close(self) -> None:
        """End the stream."""
        self._frames.put(None)
        self._channel.close()

    def _outgoing(self) -> Iterator[bytes]:
        while (frame := self._frames.get()) is not None:
            yield frame


async def _echo(frames: AsyncIterator[bytes], _: Any) -> AsyncIterator[bytes]:
    reply = await anext(frames)
    yield reply
    async for _frame in frames:
        yield reply


async def _serve() -> None:
    server = grpc.aio.server(options=_OPTIONS)
    handlers: Any = {_METHOD: grpc.stream_stream_rpc_method_handler(_echo)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(f"echo listening on 127.0.0.1:{port}", flush=True)
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(_serve())
