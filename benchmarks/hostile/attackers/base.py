"""The base class of attackers: it opens connections first, then its threads repeat a round until the process ends."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import torch

from benchmarks.hostile.raw import RawSession
from logitport import Client, Request
from logitport.session import Handle, Session

PRINCIPALS = 4
VOCAB_SIZE = 32_000
_TIMEOUT_SECONDS = 120.0


class Target(NamedTuple):
    """The server under attack.

    Attributes:
        address: HOST:PORT of its gRPC service.
        transport: "grpc" or "local", for sessions.
        tokens: of the attacker's PRINCIPALS principals, each with the scopes apply and register.
    """

    address: str
    transport: Any
    tokens: Sequence[str]


class Attacker(ABC):
    """One hostile caller, in a process of its own.

    Attributes:
        name: name in the table.
        does: the attack, in one line.
        threads: how many threads repeat `attack` at the same time.
        counts: how often the attack ran, and its errors by class.
    """

    name: ClassVar[str]
    does: ClassVar[str]
    threads: ClassVar[int] = 1

    def __init__(self, target: Target) -> None:
        self.target = target
        self.counts: Counter[str] = Counter()
        self._clients: dict[int, Client] = {}
        self._lock = threading.Lock()

    def prepare(self) -> None:
        """Open what all rounds use."""

    @abstractmethod
    def attack(self, thread: int) -> None:
        """Run one round. `thread` is in [0, threads)."""

    def client(self, principal: int = 0) -> Client:
        """The client of a principal."""
        with self._lock:
            if principal not in self._clients:
                token = self.target.tokens[principal]
                self._clients[principal] = Client(self.target.address, token=token, timeout=_TIMEOUT_SECONDS)
            return self._clients[principal]

    def session(self, principal: int = 0) -> Session:
        """A new session of a principal."""
        return self.client(principal).session(
            vocab_size=VOCAB_SIZE, dtype=torch.float32, transport=self.target.transport
        )

    def raw_session(self, principal: int = 0, **opening: Any) -> RawSession:
        """A new session that sends any frame."""
        opening = {"vocab_size": VOCAB_SIZE, "datatype": "FP32", **opening}
        return RawSession(self.target.address, self.target.tokens[principal], self.target.transport, **opening)


class Engine:
    """A session of an attacker whose requests each have one shipped processor."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._handles: list[Handle] = []

    def add(self, processor: type, tenant: str = "") -> None:
        """Admit a request that goes on after its processor has failed."""
        request = Request([1], processors=[(processor, {})], tenant=tenant, on_error="skip")
        self._handles.append(self._session.add(request))

    def step(self, token_ids: Sequence[int] = ()) -> int:
        """Run a step of all requests. Returns how many processors failed."""
        logits = torch.zeros(len(self._handles), VOCAB_SIZE)
        result = self._session.step(dict.fromkeys(self._handles, token_ids)).apply(logits, check=False)
        return len(result.skipped) + len(result.failures)

    def clear(self) -> None:
        """Remove all requests."""
        while self._handles:
            self._session.remove(self._handles.pop())


def numbered(base: type, number: int, name: str = "") -> type:
    """A subclass with a digest of its own, and so with a trust domain of its own."""
    return type(name or f"{base.__name__}{number}", (base,), {"__module__": base.__module__, "number": number})
