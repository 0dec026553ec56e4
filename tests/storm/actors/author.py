"""An author: registers, replaces, deletes and lists processors, and compares the registry with what it must be."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from logitport import Client, LogitportError, NotFound, ServerUnavailable
from tests.storm.actors.base import Actor
from tests.storm.classes import VERSIONS, payload

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from tests.storm.script import Event

_NAMES = 6
_CLASSES = ("DenyLast", "Rest", "Scale", "Raises", "ScaleProgram")
_CALL_SECONDS = 2.0
# A change reaches other servers within a second, or several on a busy machine. One that is lost never does.
_LAG_SECONDS = 10.0

_Found = TypeVar("_Found")


class Author(Actor):
    """Registers names of its own."""

    kind = "author"

    @staticmethod
    def draw(random: Random, seconds: float, principal: str = "", **given: Any) -> list[Event]:
        at, events = 0.0, [{"at": 0.0, "do": "connect", "principal": principal}]
        while (at := round(at + random.expovariate(1.5), 3)) < seconds:
            do = random.choices(["register", "delete", "look_up", "compare", "read_output"], [6, 2, 4, 1, 2])[0]
            event = {"at": at, "do": do, "name": f"{principal}/n{random.randrange(_NAMES)}"}
            if do == "register":
                event |= {"class": random.choice(_CLASSES), "version": random.randrange(VERSIONS)}
            events.append(event)
        return events

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._client: Client | None = None
        self._principal = ""
        # Digest by name; "" for a name that is not bound, and None if it is unknown.
        self._bound: dict[str, str | None] = {}
        self._changed = 0.0

    def connect(self, event: Event) -> None:
        """Connect as a principal."""
        self._principal = event["principal"]
        self.records.common = {"principal": self._principal}
        self._client = Client(self.setting.targets, token=self.setting.tokens[self._principal], timeout=60)

    def register(self, event: Event) -> None:
        """Bind a name, which may be bound already."""
        made = payload(event["class"], event["version"])

        def call(client: Client) -> str:
            return client.register(made, name=event["name"], replace=True, lift=False, shared=True).digest

        self._change(event["name"], call)

    def delete(self, event: Event) -> None:
        """Delete a name."""

        def call(client: Client) -> str:
            try:
                client.delete(event["name"])
            except NotFound:
                if self._bound.get(event["name"], ""):
                    self._lost(event["name"], "it was not found by a deletion")
            return ""

        self._change(event["name"], call)

    def look_up(self, event: Event) -> None:
        """Compare one name; a server may lag behind for a while."""
        if self._client is None:
            return
        client, name = self._client, event["name"]
        if (bound := self._bound.get(name, "")) is None:
            return

        def find() -> str:
            with suppress(NotFound):
                return client.processor(name).digest
            return ""

        with suppress(ServerUnavailable):
            if (found := self._find_in_time(find, bound)) == bound:
                self.count["names that are right"] += 1
            else:
                self._lost(name, f"a look-up found {found!r}, and it is bound to {bound!r}")

    def compare(self, event: Event) -> None:
        """Compare the list of all names; a server may lag behind for a while."""
        if self._client is None or None in self._bound.values():
            return
        client, bound = self._client, {name: digest for name, digest in self._bound.items() if digest}

        def find() -> dict[str, str]:
            with self.records.waiting("list", _CALL_SECONDS):
                listed = {name: each.digest for each in client.processors() for name in each.names}
            return {name: digest for name, digest in listed.items() if name.startswith(f"{self._principal}/")}

        with suppress(ServerUnavailable):
            if (found := self._find_in_time(find, bound)) != bound:
                self._lost("all names", f"listed {found}, expected {bound}")
            self.count["lists"] += 1

    def _find_in_time(self, find: Callable[[], _Found], bound: _Found) -> _Found:
        """Search again until the last change is found, or should have reached all servers. Returns the last result."""
        while True:
            begun = time.monotonic()
            if (found := find()) == bound or begun > self._changed + _LAG_SECONDS:
                return found
            time.sleep(0.1)

    def read_output(self, event: Event) -> None:
        """Read what a processor has printed for this principal: nothing, because it calls none."""
        if self._client is None:
            return
        try:
            with self.records.waiting("output", _CALL_SECONDS):
                if output := self._client.logs(event["name"]):
                    self.records.add("leaked output", detail=repr(output)[:500])
        except (NotFound, ServerUnavailable):
            self.count["no output"] += 1

    def close(self) -> None:
        if self._client is not None:
            self._client.close()

    def _change(self, name: str, call: Any) -> None:
        if self._client is None:
            return
        begun = time.monotonic()
        try:
            with self.records.waiting("change of the registry", _CALL_SECONDS):
                self._bound[name] = call(self._client)
        except ServerUnavailable:
            self._bound[name] = None
        except LogitportError as error:
            self._bound[name] = None
            fields = {"error": type(error).__name__, "code": error.code, "detail": str(error)[:1000], "begun": begun}
            self.records.add("failure", ships=True, **fields)
        self._changed = time.monotonic()
        self.count["changes of the registry"] += 1

    def _lost(self, name: str, detail: str) -> None:
        self.records.add("failure", error="WrongRegistry", detail=f"{name}: {detail}", begun=self._changed, ships=False)
