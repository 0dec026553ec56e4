"""Which thread parses the messages of registrations."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any, cast

from logitport.core.fair_threads import FairThreads
from logitport_proto import registry_pb2
from logitport_server.access import Unparsed, current_call, messages
from logitport_server.access.guard import Call
from logitport_server.access.messages import SMALL_BYTES
from logitport_server.executors.output import OutputLog
from logitport_server.transports.registry_service import RegistryService
from logitport_session.principals import ANONYMOUS

if TYPE_CHECKING:
    import pytest


def test_a_large_registration_is_parsed_on_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    on_loop = []

    def parse(kind: Any, data: bytes) -> Any:
        on_loop.append(threading.current_thread() is threading.main_thread())
        return kind.FromString(data)

    class Registered:
        id = "one"

        def register(self, serialized: str, name: str, *_: object, **__: object) -> registry_pb2.ProcessorInfo:
            return registry_pb2.ProcessorInfo(names=[name], size_bytes=len(serialized))

    async def register() -> registry_pb2.RegisterResponse:
        current_call.set(Call(ANONYMOUS, lambda: None))
        request = registry_pb2.RegisterRequest(name="a/b", payload="x" * SMALL_BYTES)
        unparsed = Unparsed(request.SerializeToString())
        registry = RegistryService(cast("Any", Registered()), threads, OutputLog())
        return await registry.Register(unparsed, cast("Any", None))

    threads = FairThreads(8, "test")
    monkeypatch.setattr(messages, "parse", parse)
    assert asyncio.run(register()).processor == registry_pb2.ProcessorInfo(names=["a/b"], size_bytes=SMALL_BYTES)
    assert on_loop == [False]
    threads.close()
