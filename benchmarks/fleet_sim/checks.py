"""Loads real servers, to check the formula of the capacity and the model of replays."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.fleet_sim.costs import Level, Storm
from benchmarks.fleet_sim.load import Load
from benchmarks.fleet_sim.pinned import LOAD_CORE, pinned, report, under_load

if TYPE_CHECKING:
    from benchmarks.fleet_sim.costs import Costs

# A server of many engines, with a size of step and a rate that gave none of the costs.
CHECK_ROWS, CHECK_STEPS = 32, 40.0
_LEVELS = (4, 8, 16, 24, 32, 36, 40, 44, 48, 52, 56, 60)
_LEVEL_SECONDS = 4.0
# (engines, engines that replay, history); the first one keeps steps waiting all the time
_STORM_ROWS = 64
_STORMS = ((24, 8, 32_768), (12, 8, 32_768), (24, 4, 16_384))


def levels() -> list[Level]:
    """A server with more and more engines; of three rounds the one with the median processor time of a step."""
    found = []
    with pinned() as server:
        for engines in _LEVELS:
            rounds = []
            for _ in range(3):
                load = Load(server.target, engines, CHECK_ROWS, 4096, CHECK_STEPS, _LEVEL_SECONDS, core=LOAD_CORE)
                latencies, seconds, used, others = under_load(server, load)
                p50, p99 = np.percentile(latencies.steps, (50, 99))
                achieved = latencies.sent / (engines * CHECK_STEPS * (_LEVEL_SECONDS - 0.5 / CHECK_STEPS))
                rounds.append(
                    Level(
                        engines,
                        used / seconds,
                        others / seconds,
                        used / latencies.sent,
                        achieved,
                        float(p50),
                        float(p99),
                    )
                )
            found.append(sorted(rounds, key=lambda level: level.step)[1])
            report(str(found[-1]))
            if found[-1].achieved < 0.8:
                break
    return found


def storms() -> list[Storm]:
    """Replays beside steps."""
    return [_storm(*storm) for storm in _STORMS]


def with_shares(costs: Costs, storm: Storm) -> Costs:
    """Return the costs with the shares of a core that steps and replays got in a storm: what was done in its time."""
    of_steps = storm.steps * costs.step_seconds(_STORM_ROWS)
    of_replays = storm.replaying * costs.replay_seconds(_STORM_ROWS, storm.history) / storm.seconds
    return replace(costs, steps_share=of_steps, replays_share=of_replays)


def _storm(engines: int, replaying: int, history: int) -> Storm:
    """Replays beside steps of 64 rows; of three rounds the one with the median duration."""
    rounds = []
    seconds = 6.0
    with pinned() as server:
        for _ in range(3):
            load = Load(server.target, engines, _STORM_ROWS, history, 25.0, seconds, replaying, LOAD_CORE)
            latencies, _, _, _ = under_load(server, load)
            begun, took = np.array(latencies.begun), np.array(latencies.steps)
            begins, lasts = seconds / 2, max(latencies.replays)
            during = (begun > begins) & (begun + took < begins + lasts)
            found = Storm(
                engines,
                replaying,
                history,
                float(np.median(took[begun + took < begins])),
                float(np.median(took[during])),
                lasts,
                float(during.sum() / lasts),
            )
            rounds.append(found)
    median = sorted(rounds, key=lambda storm: storm.seconds)[1]
    report(str(median))
    return median
