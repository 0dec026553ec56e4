"""The processors that a session's requests use."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Protocol
from weakref import WeakValueDictionary

from logitport_session.dialects import make_dialect
from logitport_session.dialects.program_dialect import ProgramDialect

if TYPE_CHECKING:
    from logitport.payload import Signature
    from logitport_proto import common_pb2
    from logitport_session.dialects import Dialect
    from logitport_session.processor_sources.installed import Installed
    from logitport_session.processor_sources.source import Source
    from logitport_session.trust.principals import Principal, TrustDomain


class Names(Protocol):
    """What the processors of requests are called: a registry."""

    installed: Installed

    def resolve(self, processor: common_pb2.Processor, principal: Principal, tenant: str) -> Source:
        """Look up a request's processor. Raises LogitportError if it is missing, or not for this principal."""


class Loader(Protocol):
    """Makes processors callable: an executor."""

    def load(self, source: Source) -> Dialect:
        """Create an instance of the processor for one session. Raises LogitportError."""


def load_trusted(source: Source, program_milliseconds: float) -> Dialect | None:
    """Create an instance of a processor that runs in this process: a program, or an installed one. None for others.

    `program_milliseconds` is how long a program may take for a row, in the worst case. Raises LimitExceeded.
    """
    if source.program is not None:
        return ProgramDialect(source.program, source.display_name, source.signature, program_milliseconds)
    if source.installed is not None:
        return make_dialect(source.installed, source.display_name, shipped=False)
    return None


class LoadedProcessors:
    """Finds processors, and loads each of them once for a session. Thread-safe."""

    def __init__(self, names: Names, loader: Loader, principal: Principal) -> None:
        self._names = names
        self._loader = loader
        self._principal = principal
        # One dialect per processor, trust domain, tenant (None: all tenants) and place in the chain. It is dropped with
        # the last request that uses it. Places have dialects of their own because a processor that keeps the state of a
        # batch, such as vLLM's, must see each request once in a step.
        # A program is also one for each signature, which is sent to the engine with it.
        self._dialects: WeakValueDictionary[
            tuple[str, TrustDomain | None, str | None, int, Signature | None], Dialect
        ] = WeakValueDictionary()
        # Not held while a processor is loaded, which may take long.
        self._lock = threading.Lock()

    def load(self, processor: common_pb2.Processor, tenant: str, place: int) -> Dialect:
        """Return the processor for this tenant and place in the chain. Raises the errors of `Names` and `Loader`."""
        source = self._names.resolve(processor, self._principal, tenant)
        signature = None if source.program is None else source.signature
        shared_key, tenant_key = ((source.key, source.domain, owner, place, signature) for owner in (None, tenant))
        with self._lock:
            dialect = self._dialects.get(shared_key) or self._dialects.get(tenant_key)
        if dialect is not None:
            return dialect
        dialect = self._loader.load(source)
        with self._lock:
            # An exception in a call that reads logits fails all rows of the call. A dialect per tenant keeps it from
            # failing the rows of other tenants. Another admission may have loaded the same processor in the meantime.
            is_shared = dialect.row_safe or not dialect.reads_logits
            return self._dialects.setdefault(shared_key if is_shared else tenant_key, dialect)

    def may_take_long_to_admit(self, request: common_pb2.Request) -> bool:
        """Whether the admission of a request may take long. Built-ins that do not declare otherwise are fast."""
        for call in request.processors:
            name = call.processor.builtin
            if not (name or call.processor.WhichOneof("by") == "builtin") or not self._names.installed.is_fast(name):
                return True
        return False
