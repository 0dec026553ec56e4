"""Recording and replay of a session's stream between an engine and a server, as bytes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import grpc

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

SESSION = "/logitport.v1.LogitProcessing/Session"
TIMEOUT_SECONDS = 200.0


@contextmanager
def recording(target: str, frames: list[tuple[bytes, bytes]]) -> Iterator[str]:
    """Yield the address of a proxy to `target` that appends the (frame, reply) of each exchange to `frames`."""
    with grpc.insecure_channel(target) as channel:

        def relay(requests: Iterator[bytes]) -> Iterator[bytes]:
            sent: list[bytes] = []

            def recorded() -> Iterator[bytes]:
                for request in requests:
                    sent.append(request)
                    yield request

            for reply in channel.stream_stream(SESSION)(recorded()):
                frames.append((sent[-1], reply))
                yield reply

        with serving(relay) as address:
            yield address


@contextmanager
def replaying(replies: Iterable[bytes]) -> Iterator[str]:
    """Yield the address of a server that answers any frames of a session with these replies."""
    with serving(lambda requests: (reply for _, reply in zip(requests, replies, strict=False))) as address:
        yield address


def exchange(target: str, requests: Iterable[bytes]) -> list[bytes]:
    """Send frames to a server, each after the reply to the previous one. Returns the replies."""
    frames: SimpleQueue[bytes | None] = SimpleQueue()
    with grpc.insecure_channel(target) as channel:
        stream = channel.stream_stream(SESSION)(iter(frames.get, None), timeout=TIMEOUT_SECONDS)
        replies = []
        for request in requests:
            frames.put(request)
            replies.append(next(stream))
        frames.put(None)
        assert not list(stream)
    return replies


@contextmanager
def serving(answer: Callable[[Iterator[bytes]], Iterator[bytes]]) -> Iterator[str]:
    class Handler(grpc.GenericRpcHandler):
        def service(self, details: Any) -> Any:
            if details.method == SESSION:
                return grpc.stream_stream_rpc_method_handler(lambda requests, _: answer(requests))
            return None

    server = grpc.server(ThreadPoolExecutor(1))
    server.add_generic_rpc_handlers([Handler()])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None).wait()
