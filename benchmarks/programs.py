"""Programs in the engine's process, on its own logits: against SGLang's processors, and against eager torch."""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from benchmarks import forwards
from benchmarks.kinds import TEMPERATURE
from benchmarks.measure import Contestant, race, ratio
from benchmarks.peers import Copy, SGLang
from benchmarks.records import BarLine, Findings, rows_of
from benchmarks.workloads import Workload
from logitport.core.history import History
from logitport.programs.columns import Columns
from logitport.programs.program import Parameter, Program, Value
from logitport.programs.request_tokens import RequestTokens
from logitport.programs.runtime.runner import Runner
from logitport.programs.types import Element
from logitport.programs.verifier import Verified, verify

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from benchmarks.records import Row
    from benchmarks.servers import Server
    from logitport import Client

_ROWS = 64
_STEPS = 15
_WINDOW = 4096
_SECTION = "bar: programs"
_LOGITS = Value("logits")


class InProgram(Contestant):
    """A program on the rows of a workload's one kind. Its parameters are checked before, at the requests' admission."""

    name = "program in process"

    def __init__(self, workload: Workload, verified: Verified, params: Mapping[str, Any]) -> None:
        self._rows = next(rows for kind, rows in workload.rows_by_kind().items() if kind is not None)
        self._verified = verified
        self._columns = Columns.checked(verified, [params] * len(self._rows))
        reads = verified.program.window > 0
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
        self._ids = torch.from_numpy(workload.histories()[:, -_WINDOW:].astype(np.int64))
        self._penalty = torch.full((workload.rows, 1), penalty)

    def begin(self, token_ids: Sequence[int]) -> None:
        self._ids = torch.cat([self._ids[:, 1:], torch.tensor(token_ids)[:, None]], dim=1)

    def finish(self, logits: torch.Tensor) -> None:
        score = logits.gather(1, self._ids)
        score = torch.where(score > 0, score / self._penalty, score * self._penalty)
        logits.scatter_(1, self._ids, score)


def programs(_: Server, __: Client) -> Findings:
    """Programs of samplers, each on all rows; a temperature on half of the rows, too."""
    rows: list[Row] = []
    bar: list[BarLine] = []
    half = [*(TEMPERATURE,) * (_ROWS // 2), *(None,) * (_ROWS // 2)]
    random.Random(1).shuffle(half)
    for case, kinds, most in (
        ("all rows", (TEMPERATURE,), 0.12),
        ("every other row", (TEMPERATURE, None), 0.5),
        ("an irregular half of the rows", tuple(half), 0.7),
    ):
        workload = Workload(kinds=kinds)
        raced_against = SGLang(workload)
        contestant = InProgram(workload, _temperature(), TEMPERATURE.params)
        _race(f"temperature on {case}", workload, contestant, raced_against, most, (rows, bar))
    workload = Workload(kinds=(TEMPERATURE,))
    for name, verified, params, function in (
        ("min-p", _min_p(), {"min_p": 0.1}, _eager_min_p),
        ("entropy gate", _entropy_gate(), {"threshold": 5.0, "temperature": 2.0}, _eager_gate),
    ):
        _race(name, workload, InProgram(workload, verified, params), Eager(function), 0.7, (rows, bar))
    contestant, eager = InProgram(workload, _penalty(), {"penalty": 1.1}), EagerPenalty(workload, 1.1)
    _race(f"repetition penalty over {_WINDOW} ids", workload, contestant, eager, 1.1, (rows, bar))
    return Findings(rows, bar)


def _race(
    case: str,
    workload: Workload,
    contestant: Contestant,
    reference: Contestant,
    most: float,
    found: tuple[list[Row], list[BarLine]],
) -> None:
    raced = race([reference, contestant, Copy(workload)], workload, forwards.none, steps=_STEPS)
    rows, bar = found
    rows += rows_of(_SECTION, case, raced, ("blocking",), reference.name)
    for name, limit in ((contestant.name, most), (Copy.name, None)):
        compared = ratio(raced[name].blocking, raced[reference.name].blocking)
        bar.append(BarLine(f"{case}, {name} ÷ {reference.name}", compared, limit))


def _number(name: str, position: int) -> tuple[Value, Value]:
    """A parameter as a number for each row; the second value is the result."""
    return Value("parameter", parameter=name), Value("unsqueeze", (position,), axis=1)


def _full(number: float) -> Value:
    return Value("full", element=Element.LOGITS, shape=(), number=number)


def _logits(position: int) -> Value:
    return Value("cast", (position,), element=Element.LOGITS)


def _temperature() -> Verified:
    values = (_LOGITS, *_number("temperature", 1), _logits(2), Value("divide", (0, 3)))
    return verify(Program("temperature", values, (Parameter("temperature", Element.FLOAT32, 1.0, 0.01, 100.0),)))


def _min_p() -> Verified:
    values = (
        _LOGITS,
        Value("softmax", (0,), axis=1),
        Value("amax", (1,), axis=1, flag=True),
        *_number("min_p", 3),
        _logits(4),
        Value("multiply", (2, 5)),
        Value("less", (1, 6)),
        _full(-math.inf),
        Value("where", (7, 8, 0)),
    )
    return verify(Program("min_p", values, (Parameter("min_p", Element.FLOAT32, 0.1, 0.0, 1.0),)))


def _eager_min_p(logits: torch.Tensor) -> None:
    probabilities = torch.softmax(logits, dim=-1)
    least = probabilities.amax(dim=-1, keepdim=True) * 0.1
    logits.copy_(torch.where(probabilities < least, -math.inf, logits))


def _entropy_gate() -> Verified:
    values = (
        _LOGITS,
        Value("log_softmax", (0,), axis=1),
        Value("exp", (1,)),
        Value("multiply", (2, 1)),
        Value("sum", (3,), axis=1, flag=True),
        Value("negate", (4,)),
        *_number("threshold", 6),
        _logits(7),
        Value("greater", (5, 8)),
        *_number("temperature", 10),
        _logits(11),
        Value("divide", (0, 12)),
        Value("where", (9, 13, 0)),
    )
    parameters = (
        Parameter("threshold", Element.FLOAT32, 1.0, 0.0, 100.0),
        Parameter("temperature", Element.FLOAT32, 1.0, 0.01, 100.0),
    )
    return verify(Program("entropy_gate", values, parameters))


def _eager_gate(logits: torch.Tensor) -> None:
    log_p = torch.log_softmax(logits, dim=-1)
    entropy = -(log_p.exp() * log_p).sum(dim=-1, keepdim=True)
    logits.copy_(torch.where(entropy > 5.0, logits / 2.0, logits))


def _penalty() -> Verified:
    values = (
        _LOGITS,
        Value("history"),
        Value("gather_or", (0, 1)),
        *_number("penalty", 3),
        _logits(4),
        _full(0.0),
        Value("greater", (2, 6)),
        Value("divide", (2, 5)),
        Value("multiply", (2, 5)),
        Value("where", (7, 8, 9)),
        Value("scatter_drop", (0, 1, 10)),
    )
    parameter = Parameter("penalty", Element.FLOAT32, 1.0, 0.01, 100.0)
    return verify(Program("repetition_penalty", values, (parameter,), _WINDOW))
