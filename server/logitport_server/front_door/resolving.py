"""Resolves registered names and digests, by `View.resolve`, for the processes of principals."""

from __future__ import annotations

import asyncio
import hashlib
import os
from io import FileIO
from typing import TYPE_CHECKING, Any

from logitport_server.principal_process.process_messages import FoundPayload, GetPayload, Resolve, Resolved

if TYPE_CHECKING:
    from logitport_server.front_door.running_process import RunningProcess
    from logitport_server.registry.registry import Registry
    from logitport_server.registry.view import Entry


class Resolving:
    """Finds registered processors for the principals of processes.

    Attributes:
        handlers: see `RunningProcess`.
    """

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self.handlers: dict[type[Any], Any] = {Resolve: self._resolve, GetPayload: self._get}

    def _resolve(self, process: RunningProcess, message: Resolve, descriptors: list[int]) -> Resolved:
        entry = self._registry.resolve_registered(message.text, process.principal, is_name=message.is_name)
        return Resolved(owner=entry.owner, payload_id=_id(entry))

    async def _get(
        self, process: RunningProcess, message: GetPayload, descriptors: list[int]
    ) -> tuple[FoundPayload, list[int]]:
        entry = self._registry.resolve_registered(message.text, process.principal, is_name=message.is_name)
        shipped = entry.payload
        # On a thread: to write 8 MB takes milliseconds, and holds no lock of the interpreter.
        with await asyncio.to_thread(_memory_of, shipped.data) as memory:
            answer = FoundPayload(
                owner=entry.owner, payload_id=_id(entry), is_program=shipped.is_program, labels=shipped.labels
            )
            return answer, [os.dup(memory.fileno())]


def _memory_of(data: bytes) -> FileIO:
    """Return a memory file with this content."""
    memory = FileIO(os.memfd_create("logitport-payload", os.MFD_CLOEXEC), "wb")
    memory.write(data)
    return memory


def _id(entry: Entry) -> bytes:
    """Name a payload with its signature, which may change while the payload stays."""
    return hashlib.sha256(f"{entry.payload.digest} {entry.payload.signature!r}".encode()).digest()
