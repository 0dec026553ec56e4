"""Programs in the engine's process, on its own logits: against SGLang's processors, and against eager torch.

Each runs twice: by the runtime alone, and in a session, which sends each step to a server. Sessions are also compared
with several tenants, with a server over TCP, and with programs after built-ins.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
import torch

from benchmarks import forwards, kinds
from benchmarks.contestants import Service, close_all
from benchmarks.kinds import Kind
from benchmarks.measure import LOWER_QUARTILE, Contestant, over_rounds, race
from benchmarks.peers import Copy, SGLang
from benchmarks.records import BarLine, ratios
from benchmarks.servers import Server
from benchmarks.workloads import Workload
from logitport import Client, Float, TensorProcessor
from logitport.core.history import History
from logitport_programs.authoring.tensor_history import TensorHistory
from logitport_programs.capturing import capture
from logitport_programs.parameters import Columns
from logitport_programs.request_tokens import RequestTokens
from logitport_programs.runtime.program_runner import Runner
from logitport_programs.verifier import verify

WINDOW = 4096


class Temperature(TensorProcessor):
    """Divides, without the greedy rows of the built-in: the same work as `kinds.Temperature`."""

    params: ClassVar = {"temperature": Float(ge=0.01, le=100)}

    def process(self, logits: torch.Tensor, params: Any, history: TensorHistory) -> torch.Tensor:  # noqa: ARG002
        return logits / params.temperature[:, None]


class MinP(TensorProcessor):
    """Denies ids with a probability below p times the highest one."""

    params: ClassVar = {"min_p": Float(ge=0, le=1)}

    def process(self, logits: torch.Tensor, params: Any, history: TensorHistory) -> torch.Tensor:  # noqa: ARG002
        probabilities = logits.softmax(-1)
        least = params.min_p[:, None] * probabilities.amax(-1, keepdim=True)
        return logits.masked_fill(probabilities < least, -torch.inf)


class EntropyGate(TensorProcessor):
    """Divides the rows whose entropy is above a threshold."""

    params: ClassVar = {"threshold": Float(ge=0, le=100), "temperature": Float(ge=0.01, le=100)}

    def process(self, logits: torch.Tensor, params: Any, history: TensorHistory) -> torch.Tensor:  # noqa: ARG002
        log_p = logits.log_softmax(-1)
        entropy = -(log_p.exp() * log_p).sum(-1, keepdim=True)
        return torch.where(entropy > params.threshold[:, None], logits / params.temperature[:, None], logits)


class RepetitionPenalty(TensorProcessor):
    """Divides positive logits of the last ids by a penalty, and multiplies the other ones by it."""

    params: ClassVar = {"penalty": Float(ge=0.01, le=100)}
    window = WINDOW

    def process(self, logits: torch.Tensor, params: Any, history: TensorHistory) -> torch.Tensor:
        penalty = params.penalty[:, None]
        score = logits.gather(-1, history.ids)
        penalized = torch.where(score > 0, score / penalty, score * penalty)
        return logits.scatter(-1, history.ids, penalized.to(logits.dtype))


def _without_peer(_: ModuleType) -> type:
    raise NotImplementedError("SGLang has no such processor")


TEMPERATURE = Kind("temperature", kinds.TEMPERATURE.params, Temperature, kinds.TEMPERATURE.theirs)
MIN_P = Kind("min-p", {"min_p": 0.1}, MinP, _without_peer)
ENTROPY_GATE = Kind("entropy gate", {"threshold": 5.0, "temperature": 2.0}, EntropyGate, _without_peer)
PENALTY = Kind(f"repetition penalty over {WINDOW} ids", {"penalty": 1.1}, RepetitionPenalty, _without_peer)


_ROWS = 64
_STEPS = 30
_SLEEPING = forwards.sleeping(10)
_FORWARDS = {"not overlapped": forwards.none, "behind 10 ms that sleeps": _SLEEPING}
_CASE = "temperature as a program on all rows"


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


def programs(_: Server, client: Client) -> Iterator[BarLine]:
    """Programs of samplers, each on all rows; a temperature on half of the rows, too."""
    half: list[Kind | None] = [*(TEMPERATURE,) * (_ROWS // 2), *(None,) * (_ROWS // 2)]
    random.Random(1).shuffle(half)
    for case, kinds_of_rows, limit in (
        ("all rows", (TEMPERATURE,), 0.12),
        ("every other row", (TEMPERATURE, None), 0.5),
        ("an irregular half of the rows", tuple(half), 0.7),
    ):
        workload = Workload(kinds=kinds_of_rows)
        yield from _compare(client, f"temperature on {case}", workload, SGLang(workload), limit)
    for kind, function in ((MIN_P, eager_min_p), (ENTROPY_GATE, eager_gate)):
        yield from _compare(client, kind.name, Workload(kinds=(kind,)), Eager(function), 0.7)
    workload = Workload(kinds=(PENALTY,))
    yield from _compare(client, PENALTY.name, workload, EagerPenalty(workload, PENALTY.params["penalty"]), 1.1)


def _compare(client: Client, case: str, workload: Workload, reference: Contestant, limit: float) -> Iterator[BarLine]:
    """Measure the time of the engine's thread: `Session.step` and `apply`, or `apply` of the runtime alone."""
    session = Service(client, workload, "local", registered=True, name="program in a session")
    contestants = [reference, InProgram(workload), session, Copy(workload)]
    raced = race(contestants, workload, _SLEEPING, steps=15)
    session.close()
    for quantity, limits in (
        ("blocking", {InProgram.name: limit, session.name: limit, Copy.name: None}),
        ("exposed", {session.name: limit}),
    ):
        named = f"{case}, behind 10 ms that sleeps: {quantity}, "
        yield from ratios(named, raced, reference.name, limits, quantity=quantity, quantile=LOWER_QUARTILE)


def tenants_of_a_program(_: Server, client: Client) -> Iterator[BarLine]:
    """The same program in the requests of four tenants, and of one."""
    workload = Workload(kinds=(TEMPERATURE,))
    tenants = {"1": 1, "4 tenants": 4}
    contestants = [
        Service(client, workload, "local", tenants=count, registered=True, name=name) for name, count in tenants.items()
    ]
    for forward_name, forward in _FORWARDS.items():
        raced = race(contestants, workload, forward, steps=_STEPS)
        yield from ratios(f"{_CASE}, {forward_name}: ", raced, "1", {"4 tenants": 1.1}, quantile=LOWER_QUARTILE)
    close_all(contestants)


def transports_of_a_program(_: Server, client: Client) -> Iterator[BarLine]:
    """The server over TCP, as on another host, and over the local transport. The logits stay in this process."""
    workload = Workload(kinds=(TEMPERATURE,))
    local = Service(client, workload, "local", registered=True, name="local")
    grpc = Service(client, workload, "grpc", registered=True, name="over TCP")
    for forward_name, forward, limits in (
        ("not overlapped", forwards.none, {"step": None}),
        ("behind 10 ms that sleeps", _SLEEPING, {"exposed": 1.05, "step": 1.05}),
    ):
        raced = race([local, grpc], workload, forward, steps=_STEPS)
        for quantity, limit in limits.items():
            case = f"{_CASE}, {forward_name}: {quantity}, "
            bars = {grpc.name: limit}
            yield from ratios(case, raced, local.name, bars, quantity=quantity, quantile=LOWER_QUARTILE)
    close_all([local, grpc])


def mix_with_a_program(_: Server, client: Client) -> Iterator[BarLine]:
    """A program as the last processor of each chain of the mix: what it adds, and what it takes by itself."""
    mix, alone = Workload(), InProgram(Workload(kinds=(TEMPERATURE,)))
    without = Service(client, mix, "local", name="without")
    together = Service(client, mix, "local", last=TEMPERATURE, name="with a temperature")
    raced = race([without, together, alone], mix, _SLEEPING, steps=_STEPS)
    close_all([without, together])
    low = {name: np.quantile(samples.exposed, LOWER_QUARTILE, axis=1) for name, samples in raced.items()}
    added = over_rounds((low[together.name] - low[without.name]) / low[alone.name])
    case = "the mix, behind 10 ms that sleeps: exposed, "
    yield BarLine(f"{case}added by a temperature ÷ {alone.name}", added, 1.05)
    limits = {together.name: None}
    yield from ratios(case, raced, without.name, limits, quantity="exposed", quantile=LOWER_QUARTILE)


def eager_min_p(logits: torch.Tensor) -> None:
    probabilities = torch.softmax(logits, dim=-1)
    least = probabilities.amax(dim=-1, keepdim=True) * 0.1
    logits.copy_(torch.where(probabilities < least, -torch.inf, logits))


def eager_gate(logits: torch.Tensor) -> None:
    log_p = torch.log_softmax(logits, dim=-1)
    entropy = -(log_p.exp() * log_p).sum(dim=-1, keepdim=True)
    logits.copy_(torch.where(entropy > 5.0, logits / 2.0, logits))
