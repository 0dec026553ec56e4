"""The command: `python -m benchmarks.fleet` measures balancers, replays of a lost server's requests, and more servers.

`python -m benchmarks.fleet publish` writes the latest results into docs/performance.md.
"""

from functools import partial

from benchmarks import suite
from benchmarks.fleet.balanced import steps
from benchmarks.fleet.more_servers import more_servers
from benchmarks.fleet.replay import replay

if __name__ == "__main__":
    parts = {part.__name__: part for part in (steps, replay, more_servers)}
    suite.main("fleet", __doc__, "fleet", partial(suite.run, parts))
