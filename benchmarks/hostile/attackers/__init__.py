"""The attackers, by name."""

from benchmarks.hostile.attackers import (
    chains,
    connections,
    crowds,
    hangs,
    histories,
    loading,
    memory,
    replies,
    sessions,
    sizes,
    slots,
    tables,
    workers,
)
from benchmarks.hostile.attackers.base import PRINCIPALS, Attacker, Target

_MODULES = (
    chains,
    hangs,
    loading,
    workers,
    sizes,
    connections,
    replies,
    crowds,
    tables,
    histories,
    slots,
    memory,
    sessions,
)

ATTACKERS: dict[str, type[Attacker]] = {attacker.name: attacker for module in _MODULES for attacker in module.ATTACKERS}

__all__ = ["ATTACKERS", "PRINCIPALS", "Attacker", "Target"]
