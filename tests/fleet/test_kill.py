"""A server that is killed, or that stops without closing its connections, while engines use it."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np

from logitport import Client, CustomLogitProcessor, Request, StateLost
from tests.end_to_end.engines import VOCAB, Engine, busiest, kill, run, sessions_of, start_together, targets
from tests.waiting import resume, stop

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import RunningServer


ENGINES, STEPS = 8, 60
# The servers of tests state a deadline of a minute (tests/conftest.py), which a session must not wait for. The figures
# are printed: on a busy machine they are several times those of an idle one.
MAX_STEP_SECONDS = 30.0


class AddsCallCount(CustomLogitProcessor):
    """Adds the number of its calls for the request, which does not follow from the history."""

    def __call__(self, logits: Any, custom_param_list: Any = None) -> Any:
        for row, params in zip(logits, custom_param_list, strict=True):
            params["calls"] = params.get("calls", 0) + 1
            row.add_(params["calls"])
        return logits


class CountingEngine(Engine):
    """An engine with a third request, whose processor reads logits and keeps state.

    Attributes:
        lost_at: the step from which on this request fails with StateLost; None if it goes on.
    """

    def __init__(self, client: Client, seed: int) -> None:
        super().__init__(client, seed)
        self.counting = self.session.add(Request([1], processors=[(AddsCallCount, {})]))
        self.lost_at: int | None = None

    def step(self) -> None:
        new_ids = dict(zip(self.handles, self.new, strict=True))
        new_ids[self.counting] = [2] if self.steps else []
        logits, result = self.timed_step(new_ids)
        self.sample(logits)
        failure = result.failures.get(self.counting)
        if failure is None:
            assert self.lost_at is None
            self.wrong += not np.array_equal(logits[2], np.full(VOCAB, self.steps, np.float32))
        else:
            assert isinstance(failure, StateLost)
            self.lost_at = self.lost_at or self.steps


def test_a_server_is_killed(start_server: Callable[..., RunningServer], figure: Callable[[str, float], None]) -> None:
    cluster = start_together(start_server, [("--no-entry-points", "--enable-custom-logit-processor")] * 3)
    with Client(targets(cluster), timeout=200) as client:
        engines = [CountingEngine(client, seed) for seed in range(ENGINES)]
        killed = busiest(cluster)
        moving, _ = sessions_of(killed)
        run(engines, STEPS, lambda: kill(killed))
        longest = max(engine.longest_step for engine in engines)
        figure("one of three servers killed: longest step of 8 engines (s)", longest)
        assert [engine.wrong for engine in engines] == [0] * ENGINES
        assert [engine.steps for engine in engines] == [STEPS] * ENGINES
        assert Counter(engine.session.reconnects for engine in engines) == {0: ENGINES - moving, 1: moving}
        for engine in engines:
            assert (engine.lost_at is None) == (engine.session.reconnects == 0)
        after = [sessions_of(server) for server in cluster if server is not killed]
        assert np.sum(after, 0).tolist() == [ENGINES, 2 * ENGINES + ENGINES - moving]
        assert longest < MAX_STEP_SECONDS


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
