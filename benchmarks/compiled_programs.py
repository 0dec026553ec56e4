"""Programs that are compiled for this CPU, against the interpreter and eager torch, and their first use."""

from __future__ import annotations

import os
import tempfile
import time
from typing import TYPE_CHECKING

import numpy as np
import torch

from benchmarks import forwards
from benchmarks.measure import LOWER_QUARTILE, over_rounds, race, ratio
from benchmarks.program_kinds import ENTROPY_GATE, MIN_P
from benchmarks.programs import Eager, InProgram, eager_gate, eager_min_p
from benchmarks.records import BarLine, Findings, rows_of
from benchmarks.workloads import Workload
from logitport.programs.fused.compiler import find_compiler
from logitport.programs.fused.fusing import Fusing
from logitport.programs.runtime.runner import Runner

if TYPE_CHECKING:
    from benchmarks.servers import Server
    from logitport import Client

_STEPS = 15
_FORWARD_MILLISECONDS = 10
_BUILD_SECONDS = 120
_FIRST_USES = 6
_SECTION = "bar: compiled programs"


class Compiled(InProgram):
    """The program as a function that was compiled before the first step."""

    name = "compiled program in process"

    def __init__(self, workload: Workload, programs: Fusing) -> None:
        super().__init__(workload)
        self._runner = Runner(compiled=programs)
        logits = torch.zeros(1, workload.vocab_size)
        programs.find(self._verified, logits, 1)
        if not programs.wait(_BUILD_SECONDS) or programs.find(self._verified, logits, 1) is None:
            raise RuntimeError("the program could not be compiled; the log has the reason")

    def first_milliseconds(self, logits: torch.Tensor, runner: Runner) -> float:
        """The time of the first use in a runner."""
        begin = time.perf_counter()
        runner.apply(self._verified, logits, self._rows, self._columns)
        return (time.perf_counter() - begin) * 1e3


def compiled_programs(_: Server, __: Client) -> Findings:
    """min-p and an entropy gate on all rows. Without a compiler, nothing is measured."""
    found = Findings([], [])
    if find_compiler() is None:
        return found
    before = os.environ.get("XDG_CACHE_HOME")
    with tempfile.TemporaryDirectory() as cache:
        os.environ["XDG_CACHE_HOME"] = cache
        try:
            for kind, function in ((MIN_P, eager_min_p), (ENTROPY_GATE, eager_gate)):
                _race(kind.name, Workload(kinds=(kind,)), Eager(function), found)
            _first_uses(Workload(kinds=(MIN_P,)), found)
        finally:
            os.environ.pop("XDG_CACHE_HOME")
            if before is not None:
                os.environ["XDG_CACHE_HOME"] = before
    return found


def _race(case: str, workload: Workload, reference: Eager, found: Findings) -> None:
    contestants = [reference, InProgram(workload), Compiled(workload, Fusing())]
    raced = race(contestants, workload, forwards.sleeping(_FORWARD_MILLISECONDS), steps=_STEPS)
    case = f"{case}, behind {_FORWARD_MILLISECONDS} ms that sleeps"
    found.rows.extend(rows_of(_SECTION, case, raced, ("blocking",), reference.name))
    for name, limit in ((Compiled.name, 0.3), (InProgram.name, None)):
        compared = ratio(raced[name].blocking, raced[reference.name].blocking, LOWER_QUARTILE)
        found.bar.append(BarLine(f"{case}: blocking, {name} ÷ {reference.name}", compared, limit))


def _first_uses(workload: Workload, found: Findings) -> None:
    """The first run of a program, with a request to compile it and without."""
    contestant, logits = Compiled(workload, Fusing()), torch.randn(workload.rows, workload.vocab_size)
    with_, without = [], []
    for number in range(_FIRST_USES):
        programs = Fusing()
        pairs = [(with_, Runner(compiled=programs)), (without, Runner())]
        for times, runner in pairs if number % 2 else reversed(pairs):
            times.append(contestant.first_milliseconds(logits.clone(), runner))
        programs.wait(_BUILD_SECONDS)
    for name, times in (("with LOGITPORT_FUSE=on", with_), ("without", without)):
        found.bar.append(BarLine(f"min-p, 64 rows, first run {name}", over_rounds(np.array(times)), None, "ms"))
