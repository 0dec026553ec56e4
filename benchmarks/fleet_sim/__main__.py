"""The command: `python -m benchmarks.fleet_sim measure`, `check`, `simulate` and `publish`.

`measure` saves the costs of this machine. `check` measures only the checks again, for the latest saved costs.
`simulate` simulates fleets with the latest saved costs, and saves the results. `publish` writes the latest results into
docs/scaling.md, and draws its picture.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from benchmarks.fleet_sim import costs


def main(arguments: list[str]) -> None:
    command = " ".join(arguments)
    if command == "measure":
        from benchmarks.fleet_sim import measure
        from benchmarks.machine import describe

        measured = measure.measure()
        costs.save(measured, costs.RESULTS / f"{costs.MEASURED}-{describe().slug}-{measured.started[:10]}.json")
    elif command == "check":
        from benchmarks.fleet_sim import checks

        path = costs.latest(costs.MEASURED)
        measured, storms = costs.load(path), checks.storms()
        again = checks.with_shares(measured.costs, storms[0])
        costs.save(replace(measured, costs=again, levels=checks.levels(), storms=storms), path)
    elif command == "simulate":
        from benchmarks.fleet_sim import results, scenarios

        path = costs.latest(costs.MEASURED)
        simulated = results.Simulated(path.name, **scenarios.simulate(costs.load(path)))
        results.save(simulated, path.with_name(path.name.replace(costs.MEASURED, costs.SIMULATED)))
    elif command == "publish":
        from benchmarks.fleet_sim import publish

        publish.publish(Path(__file__).parents[2])
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
