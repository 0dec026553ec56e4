"""Prices of programs against their measured times, on the slowest values: `python -m benchmarks.program_prices`.

Random programs run on one row and on four rows of 151,936 logits, with one thread. The factor is
measured ÷ priced time: above 1, a program took longer than its price.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import TYPE_CHECKING, NamedTuple

import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as with_seed

from logitport.core.history import History
from logitport.errors import InvalidProgram, LimitExceeded
from logitport.programs.columns import Columns
from logitport.programs.cost.limits import milliseconds
from logitport.programs.request_tokens import RequestTokens
from logitport.programs.runtime.runner import Runner
from logitport.programs.verifier import Verified, verify
from tests.client.programs.strategies import programs

if TYPE_CHECKING:
    from logitport.programs.program import Program

VOCAB = 151_936
# Times below it, in milliseconds, are mostly overhead.
_LEAST_MS = 0.5


class Compared(NamedTuple):
    """A program's times, in milliseconds."""

    verified: Verified
    rows: int
    dtype: str
    measured: float
    priced: float

    @property
    def factor(self) -> float:
        return self.measured / self.priced


def compare(count: int, seed: int) -> list[Compared]:
    found: list[Compared] = []

    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
    )
    @given(programs(max_values=24))
    def each(program: Program) -> None:
        verified = verify(program)
        try:
            verified.check_width(VOCAB)
        except (InvalidProgram, LimitExceeded):
            return
        for rows, dtype in ((1, "float32"), (4, "float32"), (1, "bfloat16"), (1, "float16")):
            found.append(_compared(verified, rows, dtype))

    with_seed(seed)(each)()
    return found


def _compared(verified: Verified, rows: int, dtype: str) -> Compared:
    columns = Columns(verified, [tuple(one.maximum for one in verified.program.parameters)] * rows)
    columns.values["b"] = [50] * rows
    histories = [RequestTokens(History(torch.randperm(VOCAB).tolist())) for _ in range(rows)]
    runner, slowest = Runner(max_bytes=8 << 30), 0.0
    for numbers in _logits(rows):
        logits = numbers.to(getattr(torch, dtype))
        runner.apply(verified, logits.clone(), range(rows), columns, histories)
        times = []
        for _ in range(2):
            again = logits.clone()
            begin = time.thread_time()
            runner.apply(verified, again, range(rows), columns, histories)
            times.append(time.thread_time() - begin)
        slowest = max(slowest, min(times) * 1e3)
    return Compared(verified, rows, dtype, slowest, milliseconds(verified, VOCAB, rows, dtype=dtype))


def _logits(rows: int) -> list[torch.Tensor]:
    shape = (rows, VOCAB)
    return [
        torch.randn(shape) * 5,
        torch.empty(shape).uniform_(-103, -88),
        torch.empty(shape).uniform_(1e-42, 1e-39),
        torch.empty(shape).uniform_(1e-22, 1e-19),
        torch.zeros(shape),
        torch.arange(VOCAB).float().repeat(rows, 1),
        torch.full(shape, float("nan")),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        found = compare(options.programs, options.seed)
    finally:
        torch.set_num_threads(threads)
    longer = [one for one in found if one.measured >= _LEAST_MS]
    factors = sorted(one.factor for one in longer)
    print(f"{len(found)} runs, {len(longer)} of at least {_LEAST_MS} ms; measured ÷ priced:")
    print(
        f"median {statistics.median(factors):.2f}, 95 % {factors[int(0.95 * len(factors))]:.2f}, most {factors[-1]:.2f}"
    )
    for one in sorted(longer, key=lambda one: -one.factor)[:8]:
        operators = [value.operator for value in one.verified.program.values]
        print(
            f"{one.factor:.2f}: {one.measured:.2f} of {one.priced:.2f} ms, {one.rows} rows of {one.dtype}: {operators}"
        )


if __name__ == "__main__":
    main()
