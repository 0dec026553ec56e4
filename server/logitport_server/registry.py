"""Processors by built-in name, registered name and digest."""

from __future__ import annotations

import re
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from logitport import payload
from logitport.errors import InvalidArgument, InvalidName, LimitExceeded, NameTaken, PayloadNotAllowed, UnknownProcessor
from logitport_builtins import BUILTINS
from logitport_proto import common_pb2, registry_pb2
from logitport_server.principals import ANYONE, Domain

if TYPE_CHECKING:
    from logitport.payload import Payload
    from logitport.processors import EditProcessor
    from logitport_server.principals import Principal

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*(/[a-z0-9][a-z0-9._-]*)+(:[a-z0-9][a-z0-9._-]*)?")
_LONGEST_NAME = 128


@dataclass(frozen=True)
class Source:
    """Where a processor that a request may use comes from: a class of ours, or a payload that a client shipped.

    Attributes:
        key: a built-in's name, or the payload's digest.
        builtin: the class; None if the processor was shipped.
        payload: the payload; None if the processor is a built-in. Nobody has unpickled it yet.
        domain: whose code it is; None for a built-in.
    """

    key: str
    builtin: type[EditProcessor] | None = None
    payload: Payload | None = None
    domain: Domain | None = None


@dataclass
class _Registered:
    payload: Payload
    owner: str
    registered_at: float
    names: set[str] = field(default_factory=set)

    def info(self) -> registry_pb2.ProcessorInfo:
        return registry_pb2.ProcessorInfo(
            digest=self.payload.digest,
            owner=self.owner,
            names=sorted(self.names),
            python=self.payload.python,
            dill=self.payload.dill,
            size_bytes=len(self.payload.data),
            registered_at=self.registered_at,
        )


class Registry:
    """Safe to use from several threads."""

    def __init__(self, *, allow_shipped: bool, max_registered: int) -> None:
        self._allow_shipped = allow_shipped
        self._max_registered = max_registered
        self._by_digest: dict[str, _Registered] = {}
        self._by_name: dict[str, _Registered] = {}
        self._lock = threading.Lock()

    def resolve(self, processor: common_pb2.Processor, principal: Principal = ANYONE, tenant: str = "") -> Source:
        """What a request's processor names. Does not unpickle.

        Args:
            processor: as the request names it.
            principal: the engine that sent the request.
            tenant: on whose behalf.

        Raises:
            InvalidArgument, UnknownProcessor, PayloadNotAllowed, MalformedPayload: see their classes.
        """
        by = processor.WhichOneof("by")
        if by == "builtin":
            if processor.builtin not in BUILTINS:
                raise UnknownProcessor(
                    f"no built-in is called {processor.builtin!r}; there are {', '.join(sorted(BUILTINS))} "
                    "(a registered name has a namespace, as in team/ban-french)"
                )
            return Source(processor.builtin, builtin=BUILTINS[processor.builtin])
        if by == "serialized":
            shipped = self._accept(processor.serialized)
            return Source(shipped.digest, payload=shipped, domain=Domain(principal.name, tenant))
        if by == "name":
            kept = self._kept(self._by_name, processor.name)
        elif by == "digest":
            kept = self._kept(self._by_digest, processor.digest)
        else:
            raise InvalidArgument("a ProcessorCall names no processor: set one of builtin, name, digest, serialized")
        return Source(kept.payload.digest, payload=kept.payload, domain=Domain(kept.owner))

    def register(
        self, serialized: str, name: str, principal: Principal = ANYONE, *, replace: bool
    ) -> registry_pb2.ProcessorInfo:
        """Keep a payload, and bind a name to it if one is given. Does not unpickle.

        Raises:
            PayloadNotAllowed, MalformedPayload, PythonMismatch: the payload is refused.
            InvalidName, NameTaken, LimitExceeded: the name or the registry's size.
        """
        shipped = self._accept(serialized)
        payload.check_python(shipped)
        if name and not (len(name) <= _LONGEST_NAME and _NAME.fullmatch(name)):
            raise InvalidName(
                f"{name!r} is not namespace/name[:tag] of at most {_LONGEST_NAME} characters out of a-z 0-9 . _ -; "
                "write, for example, team/ban-french:v2"
            )
        with self._lock:
            bound = self._by_name.get(name)
            if bound and bound.payload != shipped and not replace:
                raise NameTaken(
                    f"{name!r} is bound to {bound.payload.digest}; choose another name or tag, or register with replace"
                )
            kept = self._by_digest.get(shipped.digest)
            if kept is None:
                if len(self._by_digest) >= self._max_registered:
                    raise LimitExceeded(
                        f"the registry holds {self._max_registered} processors, its limit: delete some, or raise "
                        "--max-registered-processors"
                    )
                kept = self._by_digest[shipped.digest] = _Registered(shipped, principal.name, time.time())
            if name:
                if bound:
                    bound.names.discard(name)
                self._by_name[name] = kept
                kept.names.add(name)
            return kept.info()

    def describe(self, processor: str) -> registry_pb2.ProcessorInfo:
        """Describe a built-in, a registered name or a digest. Raises UnknownProcessor."""
        if processor in BUILTINS:
            return _describe_builtin(processor)
        with self._lock:
            return self._find(processor).info()

    def describe_all(self) -> list[registry_pb2.ProcessorInfo]:
        """Built-ins by name, then registered processors by first name."""
        with self._lock:
            registered = [kept.info() for kept in self._by_digest.values()]
        registered.sort(key=lambda info: (list(info.names), info.digest))
        return [_describe_builtin(name) for name in sorted(BUILTINS)] + registered

    def delete(self, processor: str) -> list[str]:
        """Forget a name, or a digest with all its names; returns those names. Raises UnknownProcessor."""
        if processor in BUILTINS:
            raise InvalidArgument(f"{processor!r} is a built-in, and built-ins cannot be deleted")
        with self._lock:
            if processor in self._by_name:
                names = [processor]
                self._by_name[processor].names.discard(processor)
            else:
                names = sorted(self._find(processor).names)
                del self._by_digest[processor]
            for name in names:
                del self._by_name[name]
        return names

    def _accept(self, serialized: str) -> Payload:
        if not self._allow_shipped:
            raise PayloadNotAllowed(
                "this server does not accept shipped processors; its operator can allow them with "
                "--enable-custom-logit-processor"
            )
        return payload.parse(serialized)

    def _find(self, processor: str) -> _Registered:
        return self._kept(self._by_name if processor in self._by_name else self._by_digest, processor)

    @staticmethod
    def _kept(table: dict[str, _Registered], processor: str) -> _Registered:
        kept = table.get(processor)
        if kept is None:
            raise UnknownProcessor(f"no registered name or digest is {processor!r}; register it first")
        return kept


def _describe_builtin(name: str) -> registry_pb2.ProcessorInfo:
    return registry_pb2.ProcessorInfo(names=[name], builtin=True, shared=True)
