"""A server that stops without closing its connections, as a paused container does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logitport import Client
from tests.end_to_end.engines import Engine, busiest, run, sessions_of, start_together, targets
from tests.waiting import resume, stop

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import RunningServer

# The servers of tests state a deadline of a minute (tests/conftest.py), which a session must not wait for.
MAX_STEP_SECONDS = 5.0


def test_a_server_is_stopped(start_server: Callable[..., RunningServer], figure: Callable[[str, float], None]) -> None:
    cluster = start_together(start_server, [("--no-entry-points",)] * 3)
    with Client(targets(cluster), timeout=200) as client:
        engines = [Engine(client, seed, "grpc" if seed % 2 else "auto") for seed in range(8)]
        stopped = busiest(cluster)
        moving, _ = sessions_of(stopped)
        run(engines, 600, lambda: stop(stopped.process))
        longest = max(engine.longest_step for engine in engines)
        figure("one of three servers stopped: longest step of 8 engines (s)", longest)
        assert [engine.wrong for engine in engines] == [0] * 8
        assert sum(engine.session.reconnects for engine in engines) == moving
        assert sum(sessions_of(server)[0] for server in cluster if server is not stopped) == 8
        resume(stopped.process)
        assert longest < MAX_STEP_SECONDS
