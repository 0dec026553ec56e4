"""The choice of a server: the client's own code, which calls simulated servers. Two others to compare it with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from logitport.errors import ServerUnavailable
from logitport.integrations.common.environment import _RECONNECT_SECONDS
from logitport.servers import _COMPARISON_SECONDS, _LOAD_SECONDS, Load, Server, Servers
from logitport.session.recovery import FIRST_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS
from logitport.session.server_choice import _OPEN_SECONDS, ServerChoice
from logitport.targets import _MIN_AGE_SECONDS, Address, AddressList, Source
from logitport_server.config import ServerConfig

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Generator, Sequence

    import simpy

    from benchmarks.fleet_sim.model import Fleet
    from benchmarks.fleet_sim.node import Node
    from logitport.errors import LogitportError
    from logitport.servers import Answer
    from logitport.session.moves import OtherServer

# All engines are one principal, as with one token for all of them.
MAX_SESSIONS: int = min(
    ServerConfig().max_sessions,
    ServerConfig.model_fields["max_sessions_per_principal"].get_default(),
)


def backoff(attempt: int, rng: random.Random) -> float:
    """Seconds between an attempt and the next one, as tenacity's `wait_random_exponential`; `attempt` begins with 1."""
    return rng.uniform(0.0, min(FIRST_BACKOFF_SECONDS * 2.0 ** (attempt - 1), MAX_BACKOFF_SECONDS))


class _Connection:
    """The transport to a simulated server."""

    def __init__(self, node: Node) -> None:
        self.node = node


class _Addresses(AddressList):
    """A list that is read at once. The client's own starts a thread for each read, which may be slow."""

    def refresh(self) -> None:
        if self._clock() - self._read_at >= _MIN_AGE_SECONDS:
            self._read_at = self._clock()
            self._replace()

    def _read_first(self) -> None:
        self.addresses = self._read()


class _NoRegistrations:
    def restore(self, _: object) -> dict[str, LogitportError]:
        return {}


class Chooser:
    """The servers of one engine's client.

    Attributes:
        announces: whether a session states when it is opened how many requests it replays.
        waited: seconds that the last choice has waited for servers that do not answer.
        reconnect_seconds: how long an engine looks for a server, with a hook's default.
    """

    servers: type[Servers] = Servers
    counts_requests = True
    announces = True
    reconnect_seconds = _RECONNECT_SECONDS

    def __init__(self, fleet: Fleet, rng: random.Random) -> None:
        self._fleet = fleet
        self.waited = 0.0
        self._other: OtherServer | None = None
        clock: Callable[[], float] = lambda: fleet.env.now  # noqa: E731
        addresses = _Addresses(Source("the fleet", self._read), lambda _: None, clock)
        chosen = self.servers(addresses, self._connect, clock=clock, rng=rng)

        def stream(server: Server, *_: float) -> Any:
            return _Connection(cast("SimulatedServer", server).node)

        self._choice = ServerChoice(chosen, stream, cast("Any", _NoRegistrations()), lambda *_: None)

    def choose(self) -> Node:
        """Return a server for a session: another one than before, if possible. Raises ServerUnavailable."""
        self.waited = 0.0
        return cast("_Connection", self._choice.connect(0.0)).node

    def elsewhere(self) -> Node | None:
        """Return another server for a session that could stay, if one accepts it."""
        self._other = self._choice.elsewhere()
        # The client waits on another thread, and its session makes steps meanwhile.
        self.waited = 0.0
        return None if self._other is None else cast("_Connection", self._other.connect()).node

    def settle(self, opened: bool) -> None:
        """Record whether the session was opened on the server that was returned last."""
        if self._other is not None:
            self._other.settle(opened)
            self._other = None

    def within_limit(self, opened: simpy.Event) -> Generator[simpy.Event, Any, bool]:
        """Wait for the reply to the first frame. Returns whether it arrived in time."""
        limit = self._fleet.env.timeout(_OPEN_SECONDS)
        yield opened | limit
        return opened.triggered and bool(opened.value)

    def _read(self) -> Sequence[Address]:
        self._fleet.reads += 1
        return _addresses(self._fleet.listed)

    def _connect(self, address: Address) -> Server:
        return cast("Server", SimulatedServer(self._fleet, self, address))


class SimulatedServer:
    """The methods of a `logitport.servers.Server` that `Servers` calls."""

    def __init__(self, fleet: Fleet, chooser: Chooser, address: Address) -> None:
        self._fleet = fleet
        self._chooser = chooser
        self.address = address
        self.target = address.target
        self.channel = None
        self.node = fleet.nodes[int(address.target)]

    def request_load(self, take_answer: Callable[[Answer], object]) -> None:
        """Pass on the answer; see `logitport.servers.Server.request_load`."""
        self._fleet.load_calls += 1
        node = self.node
        if node.is_dead:
            take_answer(ServerUnavailable(f"server {self.target} is lost"))
        elif node.is_hung:
            # At most one server of a fleet hangs. The other one of the pair answers, unless there is no other one.
            self._chooser.waited += _COMPARISON_SECONDS if len(self._fleet.nodes) > 1 else _LOAD_SECONDS
            take_answer(None)
        else:
            node.serve(self._fleet.costs.get_load)
            requests = node.requests if self._chooser.counts_requests else 0
            take_answer(Load(node.sessions + requests, node.accepts))


class _OneAtRandom(Servers):
    def least_loaded(self, excluded: Server | None = None) -> Server:
        return self.any(excluded)


class OneAtRandom(Chooser):
    """A random server, whatever its load."""

    servers = _OneAtRandom


class _InOrder(Servers):
    def least_loaded(self, excluded: Server | None = None) -> Server:
        listed = self._list.addresses
        place = 0 if excluded is None else listed.index(excluded.address) + 1
        if excluded is None:
            place = self._rng.randrange(len(listed))
        return self._server(listed[place % len(listed)])


class InOrder(Chooser):
    """At first a random server, then the next one of the list."""

    servers = _InOrder


class Unannounced(Chooser):
    """The less loaded of two, by the requests that they have admitted."""

    announces = False


class BySessions(Chooser):
    """The one of two random servers with fewer sessions, however many requests they hold."""

    counts_requests = False


_lists: dict[int, tuple[Address, ...]] = {}


def _addresses(count: int) -> tuple[Address, ...]:
    """The addresses 0, 1, ... as in a document. Equal lists share memory: each engine holds one."""
    if count not in _lists:
        _lists[count] = tuple(Address(str(number)) for number in range(count))
    return _lists[count]
