"""Answers the questions of processes for registered processors."""

from __future__ import annotations

import hashlib
import pickle
from typing import TYPE_CHECKING, Any

from logitport_server.principal_process.messages import GetPayload, Payload, Resolve, Resolved

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
        entry = self._registry.find(message.text, process.principal, is_name=message.is_name)
        return Resolved(owner=entry.owner, payload_id=_id(entry))

    def _get(self, process: RunningProcess, message: GetPayload, descriptors: list[int]) -> Payload:
        entry = self._registry.find(message.text, process.principal, is_name=message.is_name)
        return Payload(owner=entry.owner, payload_id=_id(entry), data=pickle.dumps(entry.payload))


def _id(entry: Entry) -> bytes:
    """Name a payload with its signature, which may change while the payload stays."""
    return hashlib.sha256(f"{entry.payload.digest} {entry.payload.signature!r}".encode()).digest()
