"""A client's registrations, kept so that they can be repeated in a registry that has never had them."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from logitport.errors import LogitportError, NameTaken, ServerUnavailable
from logitport.system.bounded import BoundedTable
from logitport_proto import registry_pb2

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from logitport.shipping.request import ProcessorRef

# Registries with content that is remembered. A server without a store has another registry after each
# restart.
_MAX_REGISTRIES = 1024


class Registrations:
    """Registered payloads by digest, and the names bound to them. Safe to use from several threads.

    What a registry has had and lacks was deleted by another client: it is dropped, and repeated nowhere.
    """

    def __init__(self) -> None:
        self._registered: dict[str, registry_pb2.RegisterRequest] = {}
        self._owners: dict[str, str] = {}
        self._digests: dict[str, str] = {}  # by name
        # The pairs of digest and name ("" for none) that each registry has had, by its id.
        self._had: BoundedTable[str, set[tuple[str, str]]] = BoundedTable(_MAX_REGISTRIES)
        self._lock = threading.Lock()

    def remember(
        self,
        request: registry_pb2.RegisterRequest,
        info: registry_pb2.ProcessorInfo | ProcessorRef,
        registry_id: str,
    ) -> None:
        """Record a registration that a server has accepted. Deletions before it have no effect any more.

        Args:
            request: the message.
            info: the processor.
            registry_id: the registry that has it, as the server has stated it.
        """
        with self._lock:
            self._registered[info.digest] = request
            self._owners[info.digest] = info.owner
            if request.name:
                self._digests[request.name] = info.digest
            for had in self._had.values():
                had -= {(info.digest, ""), (info.digest, request.name)}
            self._add(registry_id, info.digest, request.name)

    def registered_in(self, registry_id: str, digest: str, name: str) -> None:
        """Record that another registry has accepted it, too."""
        with self._lock:
            self._add(registry_id, digest, name)

    def forget(self, processor: str) -> None:
        """Drop a name, or a digest with all its names, after it was deleted."""
        with self._lock:
            self._registered.pop(processor, None)
            self._owners.pop(processor, None)
            self._digests = {name: digest for name, digest in self._digests.items() if processor not in (name, digest)}

    def has(self, digest: str) -> bool:
        """Whether this client has registered the processor with this digest."""
        return digest in self._registered

    def payload(self, digest: str) -> str:
        """The payload with this digest; "" if this client has not registered it."""
        request = self._registered.get(digest)
        return "" if request is None else request.payload

    def restore(self, call: Callable[[str, Any], Any]) -> dict[str, LogitportError]:
        """Register every processor in a registry that has never had it, under its names that are free.

        Args:
            call: sends a message to a method of the server's registry, "List" or "Register". Raises LogitportError.

        Returns:
            The error of each processor that the server refused, by digest.

        Raises:
            ServerUnavailable: there is no server, or it does not answer.
        """
        registered = dict(self._registered)
        if not registered:
            return {}
        try:
            listed = call("List", registry_pb2.ListRequest(digests=registered))
        except ServerUnavailable:
            raise
        except LogitportError as error:
            return dict.fromkeys(registered, error)
        found = {(info.digest, info.owner): info.names for info in listed.processors}
        refused = {}
        for digest, request in registered.items():
            names = found.get((digest, self._owners.get(digest, "")))
            try:
                for name in self._lacking(listed.registry_id, digest, names):
                    self._register(request, digest, name, call)
            except ServerUnavailable:
                raise
            except LogitportError as error:
                refused[digest] = error
        return refused

    def _lacking(self, registry_id: str, digest: str, found: Collection[str] | None) -> list[str]:
        """Return the names, "" for none, under which a processor is to be registered in this registry.

        Args:
            registry_id: the registry.
            digest: the processor.
            found: the names that are bound to it there; None if it is not there.
        """
        with self._lock:
            names = ["", *(name for name, bound in self._digests.items() if bound == digest)]
            had = self._had.get(registry_id, set()) & {(digest, name) for name in names}
        if (digest, "") not in had:
            if found is None:
                return names
            for name in names:  # registered by another client, which may have deleted names
                self.registered_in(registry_id, digest, name)
            return []
        deleted = [digest] if found is None else [name for _, name in had if name and name not in found]
        for processor in deleted:
            self.forget(processor)
        return [] if found is None else [name for name in names if (digest, name) not in had]

    def _register(
        self, request: registry_pb2.RegisterRequest, digest: str, name: str, call: Callable[[str, Any], Any]
    ) -> None:
        again = registry_pb2.RegisterRequest(payload=request.payload, name=name, shared=request.shared)
        try:
            registry_id = call("Register", again).registry_id
        except NameTaken:  # it was bound to another digest in the meantime
            return
        self.registered_in(registry_id, digest, name)

    def _add(self, registry_id: str, digest: str, name: str) -> None:
        self._had[registry_id] = self._had.get(registry_id, set()) | {(digest, ""), (digest, name)}
