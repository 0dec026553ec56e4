"""What a client has registered, for a server that forgets it."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from logitport.errors import LogitportError, NameTaken, ServerUnavailable, UnknownProcessor
from logitport_proto import registry_pb2

if TYPE_CHECKING:
    from collections.abc import Callable

    from logitport_proto import registry_pb2_grpc


class Registrations:
    """Payloads by digest, and the names that were bound to them. Safe to use from several threads.

    Args:
        registry: the server's.
        call: calls one of its methods. Raises LogitportError.
    """

    def __init__(self, registry: registry_pb2_grpc.ProcessorRegistryStub, call: Callable[[Any, Any], Any]) -> None:
        self._registry = registry
        self._call = call
        self._asked: dict[str, registry_pb2.RegisterRequest] = {}
        self._owners: dict[str, str] = {}
        self._digests: dict[str, str] = {}  # by name
        self._lock = threading.Lock()

    def remember(self, asked: registry_pb2.RegisterRequest, info: registry_pb2.ProcessorInfo) -> None:
        """The server has done what was asked."""
        with self._lock:
            self._asked[info.digest] = asked
            self._owners[info.digest] = info.owner
            if asked.name:
                self._digests[asked.name] = info.digest

    def forget(self, processor: str) -> None:
        """The server has forgotten this name, or this digest with all its names."""
        with self._lock:
            self._asked.pop(processor, None)
            self._digests = {name: digest for name, digest in self._digests.items() if processor not in (name, digest)}

    def restore(self) -> dict[str, LogitportError]:
        """Register again what the server does not have, under those of its names that are free there.

        Returns:
            Why the server refused what it refused, by digest.

        Raises:
            ServerUnavailable: there is no server.
        """
        refused = {}
        for digest, asked in list(self._asked.items()):
            try:
                if not self._is_there(digest):
                    self._register(asked, digest)
            except ServerUnavailable:
                raise
            except LogitportError as error:
                refused[digest] = error
        return refused

    def _is_there(self, digest: str) -> bool:
        try:
            found = self._call(self._registry.Get, registry_pb2.GetRequest(processor=digest)).processor
        except UnknownProcessor:
            return False
        return bool(found.owner == self._owners[digest])

    def _register(self, asked: registry_pb2.RegisterRequest, digest: str) -> None:
        with self._lock:
            names = [name for name, bound in self._digests.items() if bound == digest]
        for name in ("", *names):
            again = registry_pb2.RegisterRequest(payload=asked.payload, name=name, shared=asked.shared)
            try:
                self._call(self._registry.Register, again)
            except NameTaken:  # somebody has bound it since
                continue
