"""Times operators on the inputs for which they are slow. It takes about a second of one core."""

from __future__ import annotations

from abc import ABC, abstractmethod
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

from logitport.programs.cost.operands import Case, cases, keys
from logitport.programs.cost.work import FILLED, SORTS, key_of
from logitport.programs.program import Program, Value
from logitport.programs.rules import OPERATORS
from logitport.programs.verifier import Verified, verify

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

# All inputs are timed with few elements, and the slowest of them with many.
_FEW = 256
_FEW_SORTED = 1024
# torch reduces one row in another way than several.
_ROWS = (1, 2)
_CANDIDATES = 3
_MANY = 2048
_MANY_SORTED = 8192
# Time that one call of an operator should take, in nanoseconds, if it is possible with these elements.
_CALL_NS = 50_000
# Of one element: half of the time of a copy with memory that is in the cache.
_MIN_UNIT_NS = 0.01
_STEPS = 64


class Price(NamedTuple):
    """Time of an operator, in nanoseconds.

    Attributes:
        unit: for each unit of work.
        call: for each call, besides its units.
    """

    unit: float
    call: float


class Measured(NamedTuple):
    """The prices of one device.

    Attributes:
        operators: by key, see `work.key_of`.
        byte: of a byte that is read or written, in nanoseconds.
        value: time of a run for each value besides its operator, in nanoseconds.
    """

    operators: Mapping[str, Price]
    byte: float
    value: float


class Engine(ABC):
    """Runs single operators, to be timed.

    Attributes:
        max_elements: elements of the longest call.
    """

    max_elements: int

    @abstractmethod
    def prepare(self, case: Case, rows: int) -> Callable[[], object]:
        """A function that runs the operator once, on this number of rows."""

    @abstractmethod
    def prepare_source(self, operator: str, ids: int) -> Callable[[], object]:
        """A function that writes one of `FILLED`, with this many elements, from as many different ids."""

    @abstractmethod
    def prepare_copy(self) -> tuple[Callable[[], object], int]:
        """A function that copies memory that no cache has, and the bytes that it reads and writes."""

    @abstractmethod
    def prepare_run(self, verified: Verified) -> Callable[[], object]:
        """A function that runs a program on one row of one logit."""

    @abstractmethod
    def nanoseconds(self, function: Callable[[], object], repeats: int) -> float:
        """The time of the fastest call."""


def measure(engine: Engine) -> Measured:
    """Measure all prices of a device."""
    operators = {key: _price(engine, operator, dtypes, plain=plain) for key, operator, dtypes, plain in keys()}
    for operator in FILLED:
        count = engine.max_elements
        time = engine.nanoseconds(engine.prepare_source(operator, count), 3)
        call = engine.nanoseconds(engine.prepare_source(operator, 1), 3)
        operators[key_of(operator, (), plain=True)] = Price(max(_MIN_UNIT_NS, (time - call) / count), call)
    copy, moved = engine.prepare_copy()
    empty = Program("Empty", (Value("logits"), *(Value("negate", (place,)) for place in range(_STEPS))))
    run = engine.nanoseconds(engine.prepare_run(verify(empty)), 3)
    negate = operators[key_of("negate", ("float32",), plain=True)].call
    return Measured(operators, engine.nanoseconds(copy, 2) / moved, max(500.0, run / _STEPS - negate))


def _price(engine: Engine, operator: str, dtypes: tuple[str, ...], *, plain: bool) -> Price:
    call = engine.nanoseconds(engine.prepare(next(cases(operator, dtypes, 4, plain=plain)), 1), 2)

    def units(case: Case, rows: int, repeats: int) -> float:
        return (engine.nanoseconds(engine.prepare(case, rows), repeats) - call) / (rows * case.units)

    sorts = operator in SORTS and plain
    count = _FEW_SORTED if sorts else _FEW
    numbers_of_rows = _ROWS if "axis" in OPERATORS[operator].fields else _ROWS[:1]
    few = list(product(cases(operator, dtypes, count, plain=plain), numbers_of_rows))
    times = [units(case, rows, 1 if sorts else 2) for case, rows in few]
    slowest = sorted(range(len(few)), key=times.__getitem__)[-_CANDIDATES:]
    expected = max(times) * few[slowest[-1]][0].units
    count = min(engine.max_elements, max(_MANY_SORTED if sorts else _MANY, int(count * _CALL_NS / max(1.0, expected))))
    many = list(product(cases(operator, dtypes, count, plain=plain), numbers_of_rows))
    chosen = [many[one] for one in slowest]
    return Price(max(_MIN_UNIT_NS, *(units(case, rows, 2) for case, rows in chosen)), call)
