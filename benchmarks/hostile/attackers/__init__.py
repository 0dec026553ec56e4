"""The attackers, by name."""

from benchmarks.hostile.attackers import calls, frames, shipped
from benchmarks.hostile.attackers.base import PRINCIPALS, Attacker, Target

_ALL = (*shipped.ATTACKERS, *frames.ATTACKERS, *calls.ATTACKERS)
ATTACKERS: dict[str, type[Attacker]] = {each.name: each for each in _ALL}

__all__ = ["ATTACKERS", "PRINCIPALS", "Attacker", "Target"]
