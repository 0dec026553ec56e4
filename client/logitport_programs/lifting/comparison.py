"""Compares a program with the processor that it was made of, on logits of several kinds and dtypes."""

from __future__ import annotations

import copy
import itertools
import math
from typing import TYPE_CHECKING, Any

import torch

from logitport.core.history import History
from logitport.errors import NotCapturable
from logitport_programs.parameters import check_param
from logitport_programs.request_tokens import RequestTokens
from logitport_programs.runtime.program_runner import Runner
from logitport_programs.types import Element
from logitport_programs.verifier import verify

if TYPE_CHECKING:
    from collections.abc import Iterator

    from logitport_programs.lifting.contracts import Contract
    from logitport_programs.program import Parameter, Program

_ROWS, _WIDTH = 6, 4500
# Of the difference of two roundings. Sums of a row may be accumulated in another order.
_TOLERANCES = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 4e-2}
# Of 4500 elements in a row: next to a threshold, two roundings may select another one.
_MAX_OTHERWISE_SELECTED = 4
_NUMBERS = {
    Element.FLOAT32: (0.5, 1.0, 0.1, 2, 0.9, 1.5, 0.0, 30.0, -1.0, 1),
    Element.INT64: (1, 2, 50, 5, 0, 1000, 7),
    Element.BOOL: (True, False),
}


def check_equal(contract: Contract, program: Program) -> None:
    """Raise NotCapturable if the program computes something else."""
    verified, runner = verify(program), Runner()
    compared = 0
    for params, (name, logits) in zip(itertools.cycle(_params(program.parameters)), _logits(), strict=False):
        ids = [[(7 * row + index) % _WIDTH for index in range(3 + row)] for row in range(_ROWS)]
        try:
            with torch.no_grad():
                expected = contract.run(logits.clone(), copy.deepcopy(params), ids)
            expected = _checked(expected, logits).to(logits.dtype)
        except NotCapturable as error:
            raise NotCapturable(f"{contract.where}: {error.message}") from None
        except Exception:  # noqa: BLE001, S112 - it refuses these parameters
            continue
        found = logits.clone()
        failed = runner.apply(verified, found, range(_ROWS), params, [RequestTokens(History(one)) for one in ids])
        rows = [row for row in range(_ROWS) if not expected[row].isnan().any()]
        compared += len(rows)
        for row in rows:
            described = f"{logits.dtype}, {name}, parameters {params[row]}"
            if row in failed:
                raise NotCapturable(f"{contract.where}: {failed[row].message} ({described}); the class does not")
            _compare(contract, described, logits[row], expected[row], found[row])
    _check_required(contract, program)
    if not compared:
        raise NotCapturable(f"{contract.where}: the class raised an exception for all parameters that were tried")


def _check_required(contract: Contract, program: Program) -> None:
    """Refuse a class that runs without a parameter that the program requires."""
    required = [one.name for one in program.parameters if one.default is None]
    if not required:
        return
    logits = torch.ones(2, _WIDTH)
    for missing in required:
        params = [{name: 1 for name in required if name != missing}] * 2
        try:
            contract.run(logits.clone(), params, [[1], [2]])
        except Exception:  # noqa: BLE001, S112 - as it should
            continue
        raise NotCapturable(
            f"{contract.where}: the class runs without the parameter {missing!r}, and the program would not: write "
            f"p.get({missing!r}, 1.0) with the default"
        )


def _checked(result: object, logits: torch.Tensor) -> torch.Tensor:
    if not isinstance(result, torch.Tensor) or result.shape != logits.shape:
        shape = list(result.shape) if isinstance(result, torch.Tensor) else type(result).__name__
        raise NotCapturable(f"returned {shape}; it must return logits of shape {list(logits.shape)}")
    return result


def _compare(
    contract: Contract, described: str, logits: torch.Tensor, expected: torch.Tensor, found: torch.Tensor
) -> None:
    if _is_close(expected, found) or _is_close(_exchanged(logits, expected), _exchanged(logits, found)):
        return
    tolerance = _TOLERANCES[found.dtype]
    same = torch.isclose(found, expected, rtol=tolerance, atol=tolerance)
    index = int((~same).nonzero()[0])
    raise NotCapturable(
        f"{contract.where}: the program differs from the class ({described}): at id {index} it computes "
        f"{float(found[index])} instead of {float(expected[index])}. The code depends on something that is not traced: "
        "use operators of torch only, and no state"
    )


def _is_close(expected: torch.Tensor, found: torch.Tensor) -> bool:
    tolerance = _TOLERANCES[found.dtype]
    same = torch.isclose(found, expected, rtol=tolerance, atol=tolerance)
    otherwise = expected.isinf() != found.isinf()
    return int((~same).sum()) <= _MAX_OTHERWISE_SELECTED and bool((same | otherwise).all())


def _exchanged(logits: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
    """The results in the order of the logits: torch.sort puts equal logits in any order."""
    by_result = result.float().argsort(stable=True)
    return result[by_result[logits[by_result].float().argsort(stable=True)]]


def _params(parameters: tuple[Parameter, ...]) -> list[list[dict[str, Any]]]:
    """Parameters of all rows: some equal, some different, and all defaults."""
    choices = {
        one.name: [*_NUMBERS[one.element], *([] if one.default is None else [check_param(one, {})])]
        for one in parameters
    }
    found = []
    for first, step in ((0, 1), (0, 0), (3, 1), (1, 0), (2, 1)):
        rows = range(first, first + step * _ROWS, step) if step else [first] * _ROWS
        found.append(
            [
                {name: values[(row + at) % len(values)] for at, (name, values) in enumerate(choices.items())}
                for row in rows
            ]
        )
    required = [one.name for one in parameters if one.default is None]
    found.append([{name: choices[name][row % 3] for name in required} for row in range(_ROWS)])
    return found


def _logits() -> Iterator[tuple[str, torch.Tensor]]:
    """Logits of each kind and dtype; more than there are parameters, so that these meet several kinds."""
    generator = torch.Generator().manual_seed(0)
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        normal = torch.randn(_ROWS, _WIDTH, generator=generator) * 3
        denied = normal.masked_fill(torch.rand(normal.shape, generator=generator) < 0.5, -math.inf)
        denied[0], denied[1, 1:] = -math.inf, -math.inf
        kinds = {
            "normal logits": normal,
            "peaked logits": normal * 4,
            "denied ids": denied,
            "equal logits": (normal * 2).round() / 2,
            "large logits": normal * 3000,
            "one number": torch.full_like(normal, 2.0),
        }
        for turn in range(2):
            yield from ((name, logits.roll(turn, 0).to(dtype)) for name, logits in kinds.items())
