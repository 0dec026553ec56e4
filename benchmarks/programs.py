"""Programs in the engine's process, on its own logits: against SGLang's processors, and against eager torch.

Each runs twice: by the runtime alone, and in a session, which sends each step to a server.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import numpy as np
import torch

from benchmarks import forwards
from benchmarks.contestants import Service
from benchmarks.measure import LOWER_QUARTILE, Contestant, race, ratio
from benchmarks.peers import Copy, SGLang
from benchmarks.program_kinds import ENTROPY_GATE, MIN_P, PENALTY, TEMPERATURE, WINDOW
from benchmarks.records import BarLine, Findings, rows_of
from benchmarks.workloads import Workload
from logitport import TensorProcessor
from logitport.core.history import History
from logitport.programs.capturing import capture
from logitport.programs.parameters import Columns
from logitport.programs.request_tokens import RequestTokens
from logitport.programs.runtime.runner import Runner
from logitport.programs.verifier import verify

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from benchmarks.kinds import Kind
    from benchmarks.servers import Server
    from logitport import Client

_ROWS = 64
_STEPS = 15
_FORWARD_MILLISECONDS = 10
_SECTION = "bar: programs"


class InProgram(Contestant):
    """A program on the rows of a workload's one kind. Its parameters are checked before, at the requests' admission."""

    name = "program in process"

    def __init__(self, workload: Workload) -> None:
        kind, self._rows = next((kind, rows) for kind, rows in workload.rows_by_kind().items() if kind is not None)
        assert issubclass(kind.ours, TensorProcessor)
        self._verified = verify(capture(kind.ours))
        self._columns = Columns.checked(self._verified, [kind.params] * len(self._rows))
        reads = self._verified.program.window > 0
        self._tokens = [RequestTokens(History(ids)) for ids in workload.histories()[self._rows]] if reads else []
        self._runner = Runner()

    def begin(self, token_ids: Sequence[int]) -> None:
        for row, tokens in zip(self._rows, self._tokens, strict=False):
            tokens.history.append(token_ids[row])

    def finish(self, logits: torch.Tensor) -> None:
        self._runner.apply(self._verified, logits, self._rows, self._columns, self._tokens)


class Eager(Contestant):
    """A function of torch, in which each operator allocates its result."""

    name = "the same code, eager"

    def __init__(self, function: Callable[[torch.Tensor], object]) -> None:
        self._function = function

    def finish(self, logits: torch.Tensor) -> None:
        self._function(logits)


class EagerPenalty(Contestant):
    """The repetition penalty in eager torch, as in transformers; the ids are one tensor, which is kept up to date."""

    name = Eager.name

    def __init__(self, workload: Workload, penalty: float) -> None:
        self._ids = torch.from_numpy(workload.histories()[:, -WINDOW:].astype(np.int64))
        self._penalty = torch.full((workload.rows, 1), penalty)

    def begin(self, token_ids: Sequence[int]) -> None:
        self._ids = torch.cat([self._ids[:, 1:], torch.tensor(token_ids)[:, None]], dim=1)

    def finish(self, logits: torch.Tensor) -> None:
        score = logits.gather(1, self._ids)
        score = torch.where(score > 0, score / self._penalty, score * self._penalty)
        logits.scatter_(1, self._ids, score)


def programs(_: Server, client: Client) -> Findings:
    """Programs of samplers, each on all rows; a temperature on half of the rows, too."""
    found = Findings([], [])
    half: list[Kind | None] = [*(TEMPERATURE,) * (_ROWS // 2), *(None,) * (_ROWS // 2)]
    random.Random(1).shuffle(half)
    for case, kinds, most in (
        ("all rows", (TEMPERATURE,), 0.12),
        ("every other row", (TEMPERATURE, None), 0.5),
        ("an irregular half of the rows", tuple(half), 0.7),
    ):
        workload = Workload(kinds=kinds)
        _race(client, f"temperature on {case}", workload, SGLang(workload), most, found)
    for kind, function in ((MIN_P, eager_min_p), (ENTROPY_GATE, eager_gate)):
        _race(client, kind.name, Workload(kinds=(kind,)), Eager(function), 0.7, found)
    workload = Workload(kinds=(PENALTY,))
    _race(client, PENALTY.name, workload, EagerPenalty(workload, PENALTY.params["penalty"]), 1.1, found)
    return found


def _race(client: Client, case: str, workload: Workload, reference: Contestant, most: float, found: Findings) -> None:
    """Measure the time of the engine's thread: `Session.step` and `apply`, or `apply` of the runtime alone."""
    session = Service(client, workload, "local", registered=True, name="program in a session")
    contestants = [reference, InProgram(workload), session, Copy(workload)]
    raced = race(contestants, workload, forwards.sleeping(_FORWARD_MILLISECONDS), steps=_STEPS)
    session.close()
    case = f"{case}, behind {_FORWARD_MILLISECONDS} ms that sleeps"
    found.rows.extend(rows_of(_SECTION, case, raced, ("exposed", "blocking"), reference.name))
    peer = raced[reference.name]
    for name, quantity, limit in (
        (InProgram.name, "blocking", most),
        (session.name, "blocking", most),
        (session.name, "exposed", most),
        (Copy.name, "blocking", None),
    ):
        compared = ratio(getattr(raced[name], quantity), getattr(peer, quantity), LOWER_QUARTILE)
        found.bar.append(BarLine(f"{case}: {quantity}, {name} ÷ {reference.name}", compared, limit))


def eager_min_p(logits: torch.Tensor) -> None:
    probabilities = torch.softmax(logits, dim=-1)
    least = probabilities.amax(dim=-1, keepdim=True) * 0.1
    logits.copy_(torch.where(probabilities < least, -torch.inf, logits))


def eager_gate(logits: torch.Tensor) -> None:
    log_p = torch.log_softmax(logits, dim=-1)
    entropy = -(log_p.exp() * log_p).sum(dim=-1, keepdim=True)
    logits.copy_(torch.where(entropy > 5.0, logits / 2.0, logits))
