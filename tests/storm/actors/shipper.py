"""An attacker who ships code that does harm, and admissions without end."""

from __future__ import annotations

import itertools
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np

from logitport import Client, Request
from tests.storm.actors.base import Actor, tolerating
from tests.storm.classes import BAD, payload

if TYPE_CHECKING:
    from tests.storm.script import Event

_VOCAB = 4096
_DIGESTS = 40
_TIMEOUT_SECONDS = 60.0


class Shipper(Actor):
    """Has the scopes `apply` and `register`."""

    kind = "shipper"

    @staticmethod
    def draw(random: Random, seconds: float, principal: str = "", servers: int = 1, **given: Any) -> list[Event]:
        at, events = 0.5, []
        while (at := round(at + random.expovariate(0.3), 3)) < seconds:
            event = {"at": at, "do": random.choice(["run_harmful_steps", "admit_without_end", "take_workers"])}
            event |= {"seed": random.randrange(1 << 30), "principal": principal, "server": random.randrange(servers)}
            event |= {"class": random.choice(sorted(BAD)), "transport": random.choice(["local", "grpc"])}
            events.append(event)
        return events

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._numbers = itertools.count(1)

    def do(self, event: Event) -> None:
        """Run an attack in a session of its own."""
        target, token = self.setting.targets[event["server"]], self.setting.tokens[event["principal"]]
        opening = {"vocab_size": _VOCAB, "transport": event["transport"], "reconnect_seconds": 0}
        with (
            tolerating(self.count),
            Client(target, token=token, timeout=_TIMEOUT_SECONDS) as client,
            client.session(**opening) as session,
        ):
            getattr(self, event["do"])(event, session, Random(event["seed"]))

    def run_harmful_steps(self, event: Event, session: Any, random: Random) -> None:
        """Run steps of several classes of a kind at once."""
        handles = []
        for _ in range(random.choice([1, 4, 12])):
            with tolerating(self.count):
                handles.append(session.add(self._request(event["class"], f"tenant {random.randrange(4)}")))
        self._step(session, handles, random.choice([1, 3]))

    def admit_without_end(self, event: Event, session: Any, random: Random) -> None:
        """Begin admissions of classes that load slowly, and leave or cancel them."""
        classes = random.choices(["SlowToInitialize", "SlowToValidate", "SlowToStart", "HangsInInit"], k=20)
        pending = session.begin_add([self._request(name, f"tenant {at % 8}") for at, name in enumerate(classes)])
        self.pause(random.choice([0.0, 0.5, 4.0]))
        if random.random() < 0.5:
            for each in pending:
                each.cancel()
        self.count["endless admissions"] += len(pending)

    def take_workers(self, event: Event, session: Any, random: Random) -> None:
        """Use a worker for each of many tenants."""
        handles = []
        for tenant in range(random.choice([10, 40])):
            with tolerating(self.count):
                handles.append(session.add(self._request("DenyLast", f"tenant {tenant}")))
        self._step(session, handles, 3)
        self.count["workers taken"] += len(handles)

    def _step(self, session: Any, handles: list[Any], steps: int) -> None:
        for _ in range(steps if handles else 0):
            logits = np.zeros((len(handles), _VOCAB), np.float32)
            result = session.step({key: [7] for key in handles}).apply(logits, check=False)
            self.count["harmful steps"] += 1
            self.count["harmful requests that failed"] += len(result.skipped)

    def _request(self, name: str, tenant: str) -> Request:
        made = payload(name, next(self._numbers) % _DIGESTS + 1)
        return Request([1], processors=[(made, {})], tenant=tenant, on_error="skip")
