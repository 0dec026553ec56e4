"""Programs in an engine's session: several tenants, a server over TCP, and programs after built-ins."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from benchmarks import forwards
from benchmarks.contestants import Service, close_all
from benchmarks.measure import LOWER_QUARTILE, over_rounds, race, ratio
from benchmarks.program_kinds import TEMPERATURE
from benchmarks.programs import InProgram
from benchmarks.records import BarLine, Findings, rows_of
from benchmarks.workloads import Workload

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from benchmarks.servers import Server
    from logitport import Client

_STEPS = 30
_SECTION = "bar: programs in a session"
_FORWARDS = {"not overlapped": forwards.none, "behind 10 ms that sleeps": forwards.sleeping(10)}


def tenants_of_a_program(_: Server, client: Client) -> Findings:
    """The same program in the requests of four tenants, and of one."""
    found = Findings([], [])
    workload = Workload(kinds=(TEMPERATURE,))
    one, four = (
        Service(client, workload, "local", tenants=tenants, registered=True, name=f"{tenants} tenants")
        for tenants in (1, 4)
    )
    for name, forward in _FORWARDS.items():
        case = f"temperature as a program on all rows, {name}"
        raced = race([one, four], workload, forward, steps=_STEPS)
        found.rows.extend(rows_of(_SECTION, case, raced, ("exposed", "blocking"), one.name))
        compared = ratio(raced[four.name].blocking, raced[one.name].blocking, LOWER_QUARTILE)
        found.bar.append(BarLine(f"{case}: 4 tenants ÷ 1", compared, 1.1))
    close_all([one, four])
    return found


def transports_of_a_program(_: Server, client: Client) -> Findings:
    """The server over TCP, as on another host, and over the local transport. The logits stay in this process."""
    found = Findings([], [])
    workload = Workload(kinds=(TEMPERATURE,))
    local, grpc = (Service(client, workload, transport, registered=True) for transport in ("local", "grpc"))
    for name, forward in _FORWARDS.items():
        case = f"temperature as a program on all rows, {name}"
        raced = race([local, grpc], workload, forward, steps=_STEPS)
        found.rows.extend(rows_of(_SECTION, case, raced, ("exposed", "blocking", "step"), local.name))
        for quantity, most in (
            (("exposed", 1.05), ("step", 1.05)) if forward is not forwards.none else (("step", None),)
        ):
            compared = ratio(getattr(raced[grpc.name], quantity), getattr(raced[local.name], quantity), LOWER_QUARTILE)
            found.bar.append(BarLine(f"{case}: {quantity}, over TCP ÷ local", compared, most))
    close_all([local, grpc])
    return found


def mix_with_a_program(_: Server, client: Client) -> Findings:
    """A program as the last processor of each chain of the mix: what it adds, and what it takes by itself."""
    mix, only_program = Workload(), Workload(kinds=(TEMPERATURE,))
    without = Service(client, mix, "local", name="the mix")
    with_program = Service(client, mix, "local", last=TEMPERATURE, name="the mix, then a temperature")
    alone = InProgram(only_program)
    case = "behind 10 ms that sleeps"
    raced = race([without, with_program, alone], mix, _FORWARDS[case], steps=_STEPS)
    close_all([without, with_program])
    low = {name: _lower_quartiles(samples.exposed) for name, samples in raced.items()}
    added = over_rounds((low[with_program.name] - low[without.name]) / low[alone.name])
    total = ratio(raced[with_program.name].exposed, raced[without.name].exposed, LOWER_QUARTILE)
    return Findings(
        list(rows_of(_SECTION, f"the mix, {case}", raced, ("exposed",), without.name)),
        [
            BarLine(f"the mix, {case}: exposed, added by a temperature ÷ {alone.name}", added, 1.05),
            BarLine(f"the mix, {case}: exposed, with a temperature ÷ without", total, None),
        ],
    )


def _lower_quartiles(seconds: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.quantile(seconds, LOWER_QUARTILE, axis=1)
