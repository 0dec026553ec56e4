"""The command: `python -m benchmarks.fleet` runs everything and saves it in results/fleet.

`python -m benchmarks.fleet publish` writes the latest results into docs/performance.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks import suite
from benchmarks.fleet import publish
from benchmarks.fleet.balanced import steps
from benchmarks.fleet.more_servers import more_servers
from benchmarks.fleet.replay import replay

if TYPE_CHECKING:
    from benchmarks.report import Report


def run() -> Report:
    """Run the parts one after the other."""
    return suite.run({part.__name__: part for part in (steps, replay, more_servers)})


if __name__ == "__main__":
    suite.main("fleet", __doc__, "fleet", run, publish.texts)
