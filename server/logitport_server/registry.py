"""Processors by built-in name, registered name and digest."""

from __future__ import annotations

import logging
import re
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from logitport import payload
from logitport.errors import (
    InvalidArgument,
    InvalidName,
    LimitExceeded,
    LogitportError,
    MalformedPayload,
    NameTaken,
    UnknownProcessor,
)
from logitport_builtins import BUILTINS
from logitport_proto import common_pb2, registry_pb2
from logitport_server.principals import ADMIN, ANYONE, REGISTER, Domain
from logitport_server.store import Binding, NoStore, Registration

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from logitport.payload import Payload
    from logitport.processors import EditProcessor
    from logitport_server.executors import Executor
    from logitport_server.payload_policy import PayloadPolicy
    from logitport_server.principals import Principal

logger = logging.getLogger(__name__)

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
    shared: bool = False
    names: set[str] = field(default_factory=set)

    def info(self) -> registry_pb2.ProcessorInfo:
        return registry_pb2.ProcessorInfo(
            digest=self.payload.digest,
            owner=self.owner,
            shared=self.shared,
            names=sorted(self.names),
            python=self.payload.python,
            dill=self.payload.dill,
            size_bytes=len(self.payload.data),
            registered_at=self.registered_at,
        )


class Registry:
    """Who registers a processor owns it: others cannot see, use or delete it, unless it is shared.

    The same payload of two principals is two registrations. Names are one namespace, and a name is its first
    registrar's. Safe to use from several threads.
    """

    def __init__(
        self,
        policy: PayloadPolicy,
        *,
        max_registered: int,
        max_owned: int,
        executor: Executor | None = None,
        store: NoStore | None = None,
    ) -> None:
        self._policy = policy
        self._executor = executor
        self._max_registered = max_registered
        self._max_owned = max_owned
        self._by_digest: dict[str, dict[str, _Registered]] = {}  # digest, then owner, in the order of registration
        self._by_name: dict[str, _Registered] = {}
        self._lock = threading.Lock()
        self._store = store or NoStore()
        self._load()

    def resolve(self, processor: common_pb2.Processor, principal: Principal = ANYONE, tenant: str = "") -> Source:
        """What a request's processor names. Does not unpickle.

        Args:
            processor: as the request names it.
            principal: the engine that sent the request.
            tenant: on whose behalf.

        Raises:
            InvalidArgument, UnknownProcessor, NotPermitted, PayloadNotAllowed, LimitExceeded, MalformedPayload,
            SignatureRefused: see their classes.
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
            principal.check(REGISTER, "ship a processor with a request")
            shipped = self._policy.accept(processor.serialized)
            return Source(shipped.digest, payload=shipped, domain=Domain(principal.name, tenant))
        if by is None:
            raise InvalidArgument("a ProcessorCall names no processor: set one of builtin, name, digest, serialized")
        with self._lock:
            kept = self._find(getattr(processor, by), principal.name, names=by == "name", digests=by == "digest")
        self._policy.check_current(kept.payload)
        return Source(kept.payload.digest, payload=kept.payload, domain=Domain(kept.owner))

    def register(
        self, serialized: str, name: str, principal: Principal = ANYONE, *, replace: bool, shared: bool = False
    ) -> registry_pb2.ProcessorInfo:
        """Keep a payload, and bind a name to it if one is given. Does not unpickle.

        Raises:
            PayloadNotAllowed, LimitExceeded, MalformedPayload, SignatureRefused, PythonMismatch: the payload is
                refused.
            InvalidName, NameTaken, LimitExceeded: the name or the registry's size.
            InternalError: it cannot be stored.
        """
        if name and not (len(name) <= _LONGEST_NAME and _NAME.fullmatch(name)):
            raise InvalidName(
                f"{name!r} is not namespace/name[:tag] of at most {_LONGEST_NAME} characters out of a-z 0-9 . _ -; "
                "write, for example, team/ban-french:v2"
            )
        shipped = self._accept(serialized, name)
        with self._lock:
            bound = self._by_name.get(name)
            if bound is not None:
                self._check_free(name, bound, shipped, principal, replace=replace)
            elif name:
                self._check_names(principal)
            kept = self._by_digest.get(shipped.digest, {}).get(principal.name)
            if kept is None:
                self._check_room(principal)
                kept = _Registered(shipped, principal.name, time.time())
            self._keep(kept, serialized, name, shared=shared)
            kept.payload = shipped  # its signature may be a newer one
            kept.shared = shared
            self._add(kept)
            if name:
                self._bind(name, kept)
            return self._describe(kept)

    def describe(self, processor: str, principal: Principal = ANYONE) -> registry_pb2.ProcessorInfo:
        """Describe a built-in, a registered name or a digest. Raises UnknownProcessor."""
        if processor in BUILTINS:
            return _describe_builtin(processor)
        with self._lock:
            return self._describe(self._find(processor, principal.name, everyones=principal.may(ADMIN)))

    def describe_all(self, principal: Principal = ANYONE) -> list[registry_pb2.ProcessorInfo]:
        """Built-ins by name, then registered processors by first name."""
        with self._lock:
            registered = [self._describe(kept) for kept in self._all() if self._sees(principal, kept)]
        registered.sort(key=lambda info: (list(info.names), info.digest))
        return [_describe_builtin(name) for name in sorted(BUILTINS)] + registered

    def delete(self, processor: str, principal: Principal = ANYONE) -> list[str]:
        """Forget a name, or a digest with all its names; returns those names.

        A digest is forgotten for the principal alone that asks; for everyone if that one has not registered it and
        has the scope "admin".

        Raises:
            UnknownProcessor: there is none, or the principal cannot see it.
            NotPermitted: it is another's.
        """
        if processor in BUILTINS:
            raise InvalidArgument(f"{processor!r} is a built-in, and built-ins cannot be deleted")
        with self._lock:
            kept = self._find(processor, principal.name, everyones=principal.may(ADMIN))
            if kept.owner != principal.name:
                principal.check(ADMIN, f"delete {processor!r}, which is another principal's")
            if processor in self._by_name:
                self._store.forget(Binding, processor)
                kept.names.discard(processor)
                del self._by_name[processor]
                return [processor]
            owners = self._by_digest[processor]
            going = [owners[principal.name]] if principal.name in owners else list(owners.values())
            return sorted(name for one in going for name in self._forget(one))

    def release(self, processor: str, principal: Principal = ANYONE) -> registry_pb2.ProcessorInfo:
        """Have a processor called again that failed too often, in whichever trust domain.

        Args:
            processor: a registered name, or a digest, which may also be of what was only shipped with requests.
            principal: who asks.

        Raises:
            NotPermitted: the principal lacks the scope "admin".
            UnknownProcessor: there is none, or it is not quarantined either.
        """
        principal.check(ADMIN, "release a processor from quarantine")
        released = self._executor is not None and self._executor.quarantine.release(processor)
        with self._lock:
            try:
                kept = self._find(processor, principal.name, everyones=True)
            except UnknownProcessor:
                if not released:
                    raise
                return registry_pb2.ProcessorInfo(digest=processor)
            if self._executor is not None:
                self._executor.quarantine.release(kept.payload.digest)
            return self._describe(kept)

    def _describe(self, kept: _Registered) -> registry_pb2.ProcessorInfo:
        info = kept.info()
        if self._executor is not None:
            info.quarantined = self._executor.quarantine.reason(info.digest, info.owner)
        return info

    def _all(self) -> Iterator[_Registered]:
        return (kept for owners in self._by_digest.values() for kept in owners.values())

    @staticmethod
    def _sees(principal: Principal, kept: _Registered) -> bool:
        return kept.shared or kept.owner == principal.name or principal.may(ADMIN)

    def _find(
        self, processor: str, asker: str, *, names: bool = True, digests: bool = True, everyones: bool = False
    ) -> _Registered:
        """One's own before what others share. Raises UnknownProcessor, which tells nothing of what is another's."""
        found: Iterable[_Registered] = ()
        if names and processor in self._by_name:
            found = [self._by_name[processor]]
        elif digests:
            found = sorted(self._by_digest.get(processor, {}).values(), key=lambda kept: kept.owner != asker)
        for kept in found:
            if everyones or kept.shared or kept.owner == asker:
                return kept
        raise UnknownProcessor(
            f"no registered name or digest is {processor!r}; register it first, or ask its owner to share it"
        )

    @staticmethod
    def _check_free(name: str, bound: _Registered, shipped: Payload, principal: Principal, *, replace: bool) -> None:
        if bound.owner != principal.name:
            raise NameTaken(f"{name!r} is another principal's; choose another name")
        if bound.payload != shipped and not replace:
            raise NameTaken(
                f"{name!r} is bound to {bound.payload.digest}; choose another name or tag, or register with replace"
            )

    def _check_names(self, principal: Principal) -> None:
        """One more name. Each is told by List, and stored."""
        if sum(len(kept.names) for kept in self._all() if kept.owner == principal.name) >= self._max_owned:
            raise LimitExceeded(
                f"{principal.title} has bound {self._max_owned} names, the most that one principal may: delete some, "
                "or raise --max-processors-per-principal"
            )

    def _check_room(self, principal: Principal) -> None:
        registered = [kept.owner for kept in self._all()]
        if registered.count(principal.name) >= self._max_owned:
            raise LimitExceeded(
                f"{principal.title} has registered {self._max_owned} processors, the most that one principal may: "
                "delete some, or raise --max-processors-per-principal"
            )
        if len(registered) >= self._max_registered:
            raise LimitExceeded(
                f"the registry holds {self._max_registered} processors, its limit: delete some, or raise "
                "--max-registered-processors"
            )

    def _load(self) -> None:
        """Take in what is stored, as far as it may still be registered here; the rest stays stored."""
        for stored in self._store.all(Registration):
            try:
                shipped = self._accept(stored.serialized)
                if shipped.digest != stored.digest:
                    raise MalformedPayload(f"its digest is {shipped.digest}")
            except LogitportError as error:
                logger.warning("the stored processor %s is left out: %s", stored.digest, error)
            else:
                self._add(_Registered(shipped, stored.owner, stored.registered_at, stored.shared))
        for bound in self._store.all(Binding):
            kept = self._by_digest.get(bound.digest, {}).get(bound.owner)
            if kept is None:
                logger.warning("the stored name %s is left out: its processor %s is", bound.name, bound.digest)
            else:
                self._bind(bound.name, kept)

    def _accept(self, serialized: str, name: str = "") -> Payload:
        shipped = self._policy.accept(serialized, name)
        check_python = payload.check_python if self._executor is None else self._executor.check_python
        check_python(shipped)
        return shipped

    def _keep(self, kept: _Registered, serialized: str, name: str, *, shared: bool) -> None:
        digest, owner = kept.payload.digest, kept.owner
        stored = Registration(
            serialized=serialized, digest=digest, owner=owner, shared=shared, registered_at=kept.registered_at
        )
        self._store.keep(stored)
        if name:
            self._store.keep(Binding(name=name, digest=digest, owner=owner))

    def _add(self, kept: _Registered) -> None:
        self._by_digest.setdefault(kept.payload.digest, {})[kept.owner] = kept

    def _bind(self, name: str, kept: _Registered) -> None:
        bound = self._by_name.get(name)
        if bound is not None:
            bound.names.discard(name)
        self._by_name[name] = kept
        kept.names.add(name)

    def _forget(self, kept: _Registered) -> set[str]:
        for name in kept.names:
            self._store.forget(Binding, name)
        self._store.forget(Registration, kept.payload.digest, kept.owner)
        for name in kept.names:
            del self._by_name[name]
        owners = self._by_digest[kept.payload.digest]
        del owners[kept.owner]
        if not owners:
            del self._by_digest[kept.payload.digest]
        return kept.names


def _describe_builtin(name: str) -> registry_pb2.ProcessorInfo:
    return registry_pb2.ProcessorInfo(names=[name], builtin=True, shared=True)
