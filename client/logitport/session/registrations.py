"""A client's registrations, kept so that they can be repeated at a server that lacks them."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from logitport.errors import DeadlineExceeded, LogitportError, NameTaken, ServerUnavailable, UnknownProcessor
from logitport_proto import registry_pb2

if TYPE_CHECKING:
    from collections.abc import Callable

    from logitport.request import ProcessorRef


class Registrations:
    """Registered payloads by digest, and the names bound to them. Safe to use from several threads."""

    def __init__(self) -> None:
        self._registered: dict[str, registry_pb2.RegisterRequest] = {}
        self._owners: dict[str, str] = {}
        self._digests: dict[str, str] = {}  # by name
        self._lock = threading.Lock()

    def remember(self, request: registry_pb2.RegisterRequest, info: registry_pb2.ProcessorInfo | ProcessorRef) -> None:
        """Record a registration that the server has accepted."""
        with self._lock:
            self._registered[info.digest] = request
            self._owners[info.digest] = info.owner
            if request.name:
                self._digests[request.name] = info.digest

    def forget(self, processor: str) -> None:
        """Drop a name, or a digest with all its names, after the server has deleted it."""
        with self._lock:
            self._registered.pop(processor, None)
            self._digests = {name: digest for name, digest in self._digests.items() if processor not in (name, digest)}

    def has(self, digest: str) -> bool:
        """Whether this client has registered the processor with this digest."""
        return digest in self._registered

    def restore(self, call: Callable[[str, Any], Any]) -> dict[str, LogitportError]:
        """Register every processor that a server lacks, under those of its names that are free there.

        Args:
            call: sends a message to a method of the server's registry, "Get" or "Register". Raises LogitportError.

        Returns:
            The error of each processor that the server refused, by digest.

        Raises:
            ServerUnavailable, DeadlineExceeded: there is no server, or it does not answer.
        """
        refused = {}
        for digest, request in list(self._registered.items()):
            try:
                if not self._is_there(digest, call):
                    self._register(request, digest, call)
            except (ServerUnavailable, DeadlineExceeded):
                raise
            except LogitportError as error:
                refused[digest] = error
        return refused

    def _is_there(self, digest: str, call: Callable[[str, Any], Any]) -> bool:
        try:
            found = call("Get", registry_pb2.GetRequest(processor=digest)).processor
        except UnknownProcessor:
            return False
        return bool(found.owner == self._owners[digest])

    def _register(self, request: registry_pb2.RegisterRequest, digest: str, call: Callable[[str, Any], Any]) -> None:
        with self._lock:
            names = [name for name, bound in self._digests.items() if bound == digest]
        for name in ("", *names):
            again = registry_pb2.RegisterRequest(payload=request.payload, name=name, shared=request.shared)
            try:
                call("Register", again)
            except NameTaken:  # it was bound to another digest in the meantime
                continue
