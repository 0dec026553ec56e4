"""An operator, which runs in the driver: it calls `Admin`, changes files, drains and restarts servers."""

from __future__ import annotations

import signal
import time
from collections import Counter
from random import Random
from typing import TYPE_CHECKING, Any

from logitport import Client, LogitportError, NotFound, ServerUnavailable
from tests.storm.actors.base import Actor

if TYPE_CHECKING:
    from tests.storm.script import Event
    from tests.storm.world import World

_CALL_SECONDS = 2.0


class Operator(Actor):
    """Has the scope `admin`.

    Attributes:
        world: the servers; set by the driver.
    """

    kind = "operator"
    world: World

    @staticmethod
    def draw(random: Random, seconds: float, servers: int = 1, restarts: bool = True, **given: Any) -> list[Event]:
        at, events = 1.0, []
        while (at := round(at + random.expovariate(1), 3)) < seconds:
            weights = [5, 5, 2, 2, 1, 0.3, 1 if restarts else 0, 1 if restarts and servers > 1 else 0]
            names = ["status", "sessions", "unquarantine", "tokens", "reload", "start_twice", "restart", "drain"]
            do = random.choices(names, weights)[0]
            events.append({"at": at, "do": do, "server": random.randrange(servers), "seed": random.randrange(1 << 30)})
            if do in ("restart", "drain"):
                at += random.uniform(8, 20)
        return events

    def status(self, event: Event) -> None:
        """Get the status."""
        self._call("status", event, lambda server: server.status())

    def sessions(self, event: Event) -> None:
        """List the sessions, and compare their numbers with the quota of a principal."""
        most = self.world.settings["options"]["max-sessions-per-principal"]

        def count(server: Any) -> None:
            for principal, sessions in Counter(each.principal for each in server.sessions()).items():
                if sessions > most:
                    self.records.add("over a bound", detail=f"{principal} has {sessions} sessions, over {most}")

        self._call("sessions", event, count)

    def unquarantine(self, event: Event) -> None:
        """Lift the quarantine of a processor."""

        def lift(server: Any) -> None:
            if not (quarantined := self._quarantined(server)):
                return
            digest = Random(event["seed"]).choice(sorted(quarantined))
            try:
                server.unquarantine(digest)
            except NotFound:  # another server lifted it, or newer quarantines took its place
                if digest not in self._quarantined(server):
                    return
                server.unquarantine(digest)  # it was quarantined again
            self.count["quarantines lifted"] += 1

        self._call("unquarantine", event, lift)

    @staticmethod
    def _quarantined(server: Any) -> set[str]:
        return {each.digest for each in server.status().quarantines}

    def tokens(self, event: Event) -> None:
        """Revoke the token of an attacker for a second."""
        hostile = sorted(name for name in self.setting.tokens if name.startswith("hostile"))
        if hostile:
            self.world.write_tokens(without=Random(event["seed"]).choice(hostile))
            self.pause(1.5)
            self.world.write_tokens()

    def reload(self, event: Event) -> None:
        """Send SIGHUP."""
        if (server := self.world.servers[event["server"]]).serving:
            server.signal(signal.SIGHUP)

    def start_twice(self, event: Event) -> None:
        """Start a server on the address of another, which must end, and leave nothing behind."""
        server = self.world.servers[event["server"]]
        if server.serving:
            self.world.start_in_vain(server)
            self.count["starts in vain"] += 1

    def restart(self, event: Event) -> None:
        """Stop a server, and start it again."""
        self.world.restart(self.world.servers[event["server"]], signal.SIGTERM)

    def drain(self, event: Event) -> None:
        """Have the sessions of a server move, and restart it."""
        with self.world.breaking("server drained", self.world.servers[event["server"]]):
            self._call("drain", event, lambda server: server.drain())
            deadline = time.monotonic() + 10
            while time.monotonic() < min(deadline, self.setting.until) and self._movable(event):
                time.sleep(0.2)
            self.restart(event)

    def _movable(self, event: Event) -> int:
        found: list[int] = []
        self._call("status", event, lambda server: found.append(server.status().movable_sessions))
        return found[0] if found else 0

    def _call(self, what: str, event: Event, call: Any) -> None:
        target, begun = self.setting.targets[event["server"]], time.monotonic()
        with Client(target, token=self.setting.tokens["operator"], timeout=60) as client:
            try:
                with self.records.waiting(what, _CALL_SECONDS):
                    call(client.servers()[0])
            except ServerUnavailable:
                self.count["calls without a server"] += 1
            except LogitportError as error:
                fields = {"error": type(error).__name__, "detail": str(error)[:1000], "begun": begun}
                self.records.add("failure", ships=False, **fields)
