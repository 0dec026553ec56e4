"""Runs built-ins of sampling, and makes logits and histories for them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch

import logitport_builtins as ours
from logitport.core.history import History
from logitport_programs.request_tokens import RequestTokens
from logitport_programs.runtime.program_runner import Runner
from logitport_programs.verifier import verify

if TYPE_CHECKING:
    from collections.abc import Sequence

    Histories = Sequence[tuple[list[int], list[int]]]

VOCAB_SIZE = 200
HISTORIES: Histories = [([1, 2, 3, 2], [7, 7, 9]), ([5], []), ([], [4, 4, 4, 4]), ([199, 0], [3, 199])]


def run(name: str, logits: torch.Tensor, params: Sequence[dict[str, Any]], histories: Histories = ()) -> torch.Tensor:
    """Run a built-in on a copy of the logits, with the parameters and the history of each row."""
    result = logits.clone()
    rows = len(logits)
    if name in ours.BUILTIN_PROGRAMS:
        program = verify(ours.BUILTIN_PROGRAMS[name])
        tokens = [RequestTokens(History(*history)) for history in histories]
        if not any(value.operator.startswith("token") for value in program.program.values):
            tokens = []
        assert Runner().apply(program, result, range(rows), params, tokens) == {}
        return result
    requests = [SimpleNamespace(origin_input_ids=prompt, output_ids=output) for prompt, output in histories]
    dicts = [{**one, "__req__": req} for one, req in zip(params, requests, strict=True)]
    return ours.BUILTINS[name]()(result, dicts)


def random_logits(rows: int, seed: int, vocab_size: int = VOCAB_SIZE) -> list[torch.Tensor]:
    """Logits as they are, with many equal ones, with -inf, and with a single allowed id."""
    generator = torch.Generator().manual_seed(seed)
    plain = torch.randn(rows, vocab_size, generator=generator) * 3
    masked = plain.masked_fill(torch.rand(plain.shape, generator=generator) < 0.5, -torch.inf)
    single = torch.full_like(plain, -torch.inf)
    single[:, 7] = plain[:, 7]
    return [plain, plain.round(), masked, single]


def assert_same(found: torch.Tensor, expected: torch.Tensor) -> None:
    """Compare all bits, except for the sign of a zero."""
    assert found.dtype == expected.dtype
    assert torch.equal(found, expected), (found, expected)


def assert_same_values(found: torch.Tensor, expected: torch.Tensor) -> None:
    """Compare which logits remain, but not for which of several ids with equal logits.

    The peers sort without an order among equal logits.
    """
    assert_same(found.sort(-1).values, expected.sort(-1).values)
