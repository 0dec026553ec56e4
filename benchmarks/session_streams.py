"""Sessions of a server in this process: no socket, no other thread."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from benchmarks.session_frames import check_admission
from logitport_server.config import ServerConfig
from logitport_server.executors import InlineExecutor
from logitport_server.metrics import Metrics
from logitport_server.registry.loader import Loader
from logitport_server.registry.policy import PayloadPolicy
from logitport_server.registry.registry import Registry
from logitport_server.session.session import EngineSession
from logitport_server.transports.stream import SessionStream

if TYPE_CHECKING:
    from collections.abc import Iterable

    from logitport_proto.processing_pb2 import OpenSession


def open_stream(admissions: Iterable[bytes]) -> SessionStream:
    """Open a session in this process by its first frames: the path of a transport's frames, without the transport."""
    loader = Loader(1)
    registry = Registry(PayloadPolicy(allow_shipped=False, max_bytes=0), max_registered=0, max_owned=0)

    def open_session(opening: OpenSession) -> EngineSession:
        return EngineSession(opening, registry, InlineExecutor(loader), torch.device("cpu"), ServerConfig())

    stream = SessionStream(open_session, Metrics(loader), None)
    for frame in admissions:
        check_admission(stream.reply(frame, "local"))
    return stream
