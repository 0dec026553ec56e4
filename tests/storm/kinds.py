"""The actors of the storm, by the part of their name before the number."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.storm.actors.attacker import Attacker
from tests.storm.actors.author import Author
from tests.storm.actors.breaker import Breaker
from tests.storm.actors.engine import Engine
from tests.storm.actors.fuzzer import Fuzzer
from tests.storm.actors.operator import Operator
from tests.storm.actors.rival import Rival

if TYPE_CHECKING:
    from tests.storm.actors.base import Actor

KINDS: dict[str, type[Actor]] = {
    each.kind: each for each in (Engine, Author, Attacker, Rival, Operator, Breaker, Fuzzer)
}
# Engines without a server, and with requests that do harm.
KINDS |= {"embedded": Engine, "mixed": Engine}
# Run in threads of the driver, because they start processes, or act on those and the files of servers.
IN_DRIVER = (Operator, Breaker, Rival)


def kind_of(name: str) -> type[Actor]:
    """The class of an actor."""
    return KINDS[name.partition("-")[0]]
