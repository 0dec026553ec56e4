"""The servers of a client: their channels, and the choice among several."""

from __future__ import annotations

import queue
import random
import threading
import time
import weakref
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Union, cast

import grpc

from logitport.errors import LogitportError, ServerUnavailable
from logitport.servers.targets import AddressList, source_of
from logitport.shipping import calls
from logitport.system.backoff import ADDED, Backoff
from logitport_proto import admin_pb2_grpc, processing_pb2, processing_pb2_grpc, registry_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from logitport.servers.connection import Connection
    from logitport.servers.targets import Address, Target

# Time for the answer of `GetLoad`. A server that is alive answers in milliseconds; one that is stopped never does.
_LOAD_SECONDS = 1.0
# How long the answer of a second server is waited for, once one has answered that accepts a session.
_COMPARISON_SECONDS = 0.05
# How long an address is set aside after a failure. Each further failure doubles it, up to a bound.
_ASIDE_SECONDS = 2.0
_MAX_ASIDE_SECONDS = 30.0
# How many pairs of servers get `GetLoad` before one that did not answer is used.
_MAX_PAIRS = 8


@dataclass(frozen=True)
class Load:
    """The load of a server.

    Attributes:
        amount: number of its sessions and requests together.
        accepts_sessions: whether it would open a session now.
    """

    amount: int
    accepts_sessions: bool


# The answer of a server: None if it does not answer in time, an error if it cannot be reached or refuses the caller.
Answer = Union[Load, None, LogitportError]


class ServerChannel:
    """One server: its channel and stubs. The channel is closed when the last reference to the object is dropped.

    Attributes:
        address: where it is.
        target: its address, for messages.
        admin, registry, processing: stubs of its services.
    """

    def __init__(self, address: Address, channel: grpc.Channel, connection: Connection) -> None:
        self.address = address
        self.target = address.target
        self.channel = channel
        self.admin = admin_pb2_grpc.AdminStub(channel)
        self.registry = registry_pb2_grpc.ProcessorRegistryStub(channel)
        self.processing = processing_pb2_grpc.LogitProcessingStub(channel)
        self._connection = connection

    def request_load(self, take_answer: Callable[[Answer], object]) -> None:
        """Request the load, and return at once. `take_answer` is called within about a second, on any thread."""
        call = self.processing.GetLoad.future(
            processing_pb2.GetLoadRequest(), timeout=_LOAD_SECONDS, metadata=self._connection.metadata
        )

        def done(_: object) -> None:
            take_answer(self._answer_of(call))

        call.add_done_callback(done)

    def answers(self) -> bool:
        """Whether it answers a call within a second. Raises ValueError if the channel was closed."""
        answers: queue.SimpleQueue[Answer] = queue.SimpleQueue()
        self.request_load(answers.put)
        answer = answers.get()
        return not (answer is None or isinstance(answer, ServerUnavailable))

    def _answer_of(self, call: Any) -> Answer:
        status = call.code()
        if status is grpc.StatusCode.OK:
            load = call.result()
            return Load(load.sessions + load.requests, load.accepts_sessions)
        if status is grpc.StatusCode.DEADLINE_EXCEEDED:
            return None
        return calls.translate(cast("grpc.RpcError", call), self.target, encrypted=self._connection.encrypted)


@dataclass
class _Refusals:
    """Servers that were called for a session and do not accept it."""

    full: list[ServerChannel] = field(default_factory=list)
    silent: list[ServerChannel] = field(default_factory=list)
    refusing: list[ServerChannel] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


class Servers:
    """The servers of a client. Safe to use from several threads.

    An address that fails is set aside for a while: others are preferred. The list is read again when a server is lost.

    Args:
        addresses: the list.
        connect: makes the `ServerChannel` of an address.
        clock: seconds of a clock that only advances.
        rng: source of random choices.

    Raises:
        InvalidArgument, ServerUnavailable: as `AddressList`.
    """

    def __init__(
        self,
        addresses: AddressList,
        connect: Callable[[Address], ServerChannel],
        *,
        clock: Callable[[], float] = time.monotonic,
        rng: random.Random | None = None,
    ) -> None:
        self._list = addresses
        self._connect = connect
        self._clock = clock
        self._rng = rng or random.Random()  # noqa: S311 - no secret
        self._lock = threading.Lock()
        self._servers: dict[Address, ServerChannel] = {}
        # Those that the list no longer names, too, while sessions use them.
        self._made: weakref.WeakSet[ServerChannel] = weakref.WeakSet()
        # Of the addresses that have failed since they last worked. During a pause, an address is set aside.
        self._failures: dict[Address, Backoff] = {}
        self._closed = False

    @classmethod
    def of(cls, target: Target, connection: Connection, max_message_bytes: int) -> Servers:
        """Make the servers of a target.

        Raises:
            InvalidArgument, ServerUnavailable: as `AddressList`.
        """
        source = source_of(target, connection.ca)
        if source.name:
            connection.check(source.name)
        if source.unencrypted_host:
            connection.check_document(source.unencrypted_host)
        addresses = AddressList(source, connection.check)

        def connect(address: Address) -> ServerChannel:
            channel = connection.channel(
                address.target,
                max_message_bytes,
                server_name=address.server_name,
                retries=addresses.single,
            )
            server = ServerChannel(address, channel, connection)
            weakref.finalize(server, channel.close).atexit = False
            return server

        return cls(addresses, connect)

    @property
    def text(self) -> str:
        """The target, for messages."""
        return self._list.text

    @property
    def single(self) -> bool:
        """Whether there is one address, and the list cannot change: there is no choice, and gRPC itself retries."""
        return self._list.single

    def __len__(self) -> int:
        """Number of addresses that the list has now."""
        return len(self._list.addresses)

    def lists_others(self, server: ServerChannel) -> bool:
        """Whether the list has another address than this server's."""
        return any(address != server.address for address in self._list.addresses)

    def any(self, excluded: ServerChannel | None = None) -> ServerChannel:
        """Return a server for a unary call: a random one that is not set aside, if there is one.

        Raises:
            ServerUnavailable: the client is closed.
        """
        return next(self._candidates([excluded] if excluded else []))[0]

    def all(self) -> list[ServerChannel]:
        """Return all servers that the list names now, in its order.

        Raises:
            ServerUnavailable: the client is closed.
        """
        return [self._server(address) for address in self._list.addresses]

    def least_loaded(self, excluded: ServerChannel | None = None) -> ServerChannel:
        """Return a server for a session: the less loaded of two random ones that answer.

        The list is read again first, unless it is new. If none accepts a session, one that is full is preferred to one
        that does not answer in time, and that to one that refuses this client, for example because of its token.

        Raises:
            ServerUnavailable: none of them can be reached, or the client is closed.
        """
        self._list.refresh()
        if len(self) == 1:
            return self.any()
        refusals = _Refusals()
        accepting = self._accepting(self._candidates([excluded] if excluded else [], at_once=2), refusals)
        for server in (accepting, *refusals.full, *refusals.silent, *refusals.refusing):
            if server is not None:
                return server
        raise ServerUnavailable(f"none of the servers {self.text} can be reached; the first one: {refusals.errors[0]}")

    def elsewhere(self, excluded: Collection[ServerChannel]) -> ServerChannel | None:
        """Return a server for a session that could stay where it is; None if no other one accepts it now.

        Chosen as by `least_loaded`, but never one that does not answer, or one of `excluded`.

        Raises:
            ServerUnavailable: the client is closed.
        """
        self._list.refresh()
        if all(address in {server.address for server in excluded} for address in self._list.addresses):
            return None
        return self._accepting(self._candidates(excluded, at_once=2), _Refusals())

    def failed(self, server: ServerChannel) -> None:
        """Set a server aside for a while.

        A failure while it is set aside is the same one: many sessions lose a server at once.
        """
        with self._lock:
            backoff = self._failures.get(server.address)
            if backoff is None:
                backoff = self._failures[server.address] = Backoff(
                    _ASIDE_SECONDS, _MAX_ASIDE_SECONDS, ADDED, clock=self._clock, uniform=self._rng.uniform
                )
            if not backoff.is_pausing:
                backoff.next()

    def worked(self, server: ServerChannel) -> None:
        """Forget the failures of a server."""
        if self._failures:
            with self._lock:
                self._failures.pop(server.address, None)

    def refresh(self) -> None:
        """Read the list again, unless it is new. A slow read goes on in the background."""
        self._list.refresh()

    def close(self) -> list[grpc.Channel]:
        """Return no server any more. Returns the channels, which the caller closes."""
        with self._lock:
            self._closed = True
            return [server.channel for server in self._made]

    def _accepting(self, pairs: Iterator[Sequence[ServerChannel]], refusals: _Refusals) -> ServerChannel | None:
        """Return a server that accepts a session: the less loaded one of a pair."""
        for _, pair in zip(range(_MAX_PAIRS), pairs, strict=False):
            answers: queue.SimpleQueue[tuple[ServerChannel, Answer]] = queue.SimpleQueue()
            for server in pair:
                server.request_load(partial(self._record, server, answers))
            accepting: list[tuple[ServerChannel, Load]] = []
            for _ in pair:
                try:
                    server, answer = answers.get(timeout=_COMPARISON_SECONDS if accepting else None)
                except queue.Empty:
                    break
                if isinstance(answer, ServerUnavailable):
                    refusals.errors.append(answer.message)
                elif isinstance(answer, LogitportError):
                    refusals.refusing.append(server)
                elif answer is None:
                    refusals.silent.append(server)
                elif answer.accepts_sessions:
                    accepting.append((server, answer))
                else:
                    refusals.full.append(server)
            if accepting:
                return min(accepting, key=lambda answered: answered[1].amount)[0]
        return None

    def _record(
        self, server: ServerChannel, answers: queue.SimpleQueue[tuple[ServerChannel, Answer]], answer: Answer
    ) -> None:
        """Record whether a server works, also if its answer is not waited for any more."""
        (self.worked if isinstance(answer, Load) else self.failed)(server)
        answers.put((server, answer))

    def _candidates(self, excluded: Collection[ServerChannel], at_once: int = 1) -> Iterator[Sequence[ServerChannel]]:
        """Yield the servers in random order, those that are set aside last.

        They come in groups of `at_once`. No group has servers of both kinds. `excluded` servers come only if there is
        no other one.
        """
        without = {server.address for server in excluded}
        listed = self._list.addresses
        with self._lock:
            self._failures = {address: it for address, it in self._failures.items() if address in listed}
            self._servers = {address: it for address, it in self._servers.items() if address in listed}
            aside = {address for address, it in self._failures.items() if it.is_pausing}
            others = [address for address in listed if address not in without]
            order = self._rng.sample(others or listed, len(others or listed))
        for group in (
            [address for address in order if address not in aside],
            [address for address in order if address in aside],
        ):
            for place in range(0, len(group), at_once):
                yield [self._server(address) for address in group[place : place + at_once]]

    def _server(self, address: Address) -> ServerChannel:
        with self._lock:
            if self._closed:
                raise calls.client_closed(self.text)
            if (server := self._servers.get(address)) is None:
                server = self._servers[address] = self._connect(address)
                self._made.add(server)
            return server
