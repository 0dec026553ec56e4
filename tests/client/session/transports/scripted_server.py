"""A gRPC server in this process whose sessions answer by a function."""

from __future__ import annotations

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import grpc

from logitport_proto import processing_pb2, processing_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    # Maps the number of the session, from 0, and a frame to the fields of the reply; None for no reply.
    Answer = Callable[[int, processing_pb2.SessionRequest], dict[str, Any] | None]


class _Sessions(processing_pb2_grpc.LogitProcessingServicer):
    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._numbers = itertools.count()
        self.ended = threading.Event()

    def Session(self, request_iterator: Any, context: Any) -> Iterator[processing_pb2.SessionResponse]:  # noqa: N802
        number = next(self._numbers)
        for frame in request_iterator:
            reply = self._answer(number, frame)
            if reply is None:
                self.ended.wait()
                return
            yield processing_pb2.SessionResponse(seq=frame.seq, **reply)

    def GetLoad(self, request: Any, context: Any) -> processing_pb2.GetLoadResponse:  # noqa: N802
        return processing_pb2.GetLoadResponse(accepts_sessions=True)


class _Interceptor(grpc.ServerInterceptor):  # type: ignore[misc]
    def __init__(self, on_call: Callable[[grpc.HandlerCallDetails], object]) -> None:
        self._on_call = on_call

    def intercept_service(self, continuation: Any, handler_call_details: grpc.HandlerCallDetails) -> Any:
        self._on_call(handler_call_details)
        return continuation(handler_call_details)


@contextmanager
def scripted_server(
    answer: Answer, on_call: Callable[[grpc.HandlerCallDetails], object] = lambda _: None
) -> Iterator[int]:
    """Run the server while the context lasts; the context is its port on loopback. `on_call` gets each call."""
    sessions = _Sessions(answer)
    with ThreadPoolExecutor(8) as threads:
        server = grpc.server(threads, interceptors=[_Interceptor(on_call)])
        processing_pb2_grpc.add_LogitProcessingServicer_to_server(sessions, server)  # type: ignore[no-untyped-call]
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            yield port
        finally:
            sessions.ended.set()
            server.stop(None).wait()
