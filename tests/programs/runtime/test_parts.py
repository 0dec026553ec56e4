"""Irregular rows run in place, part by part, where that takes less time than copying them."""

from __future__ import annotations

import itertools

import pytest
import torch

from logitport.errors import LimitExceeded
from logitport_programs.parameters import Columns
from logitport_programs.runtime import parts as parts_module
from logitport_programs.runtime import program_runner as runner_module
from logitport_programs.runtime.parts import divided
from logitport_programs.runtime.program_runner import Runner
from tests.programs.runtime import build
from tests.programs.runtime.memory import held_bytes

ROWS, WIDTH = 8, 50


def test_parts_have_the_result_of_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    verified = build.temperature()
    params = Columns.checked(verified, [{"temperature": 1 + row} for row in range(ROWS)])
    before = torch.randn(ROWS, WIDTH)
    for rows in itertools.combinations(range(ROWS), 4):
        results = []
        for worthwhile in (False, True):
            monkeypatch.setattr(runner_module, "are_worthwhile", lambda *_, chosen=worthwhile: chosen)
            logits = before.clone()
            Runner().apply(verified, logits, rows, params.part(2, 6))
            results.append(logits)
        assert torch.equal(*results)


def test_a_large_batch_runs_in_parts_without_a_copy() -> None:
    runner, logits = Runner(), torch.ones(ROWS, 151_936)
    runner.apply(build.temperature(), logits, [0, 1, 5], [{"temperature": 2.0}] * 3)
    assert logits[:, 0].tolist() == [0.5, 0.5, 1, 1, 1, 0.5, 1, 1]
    assert held_bytes(runner) < 1000


def test_parts_are_divided_evenly() -> None:
    assert divided([(0, 64)], 1) == [(0, 64)]
    assert divided([(0, 64)], 760_000) == [(begin, min(begin + 11, 64)) for begin in range(0, 64, 11)]
    assert divided([(0, 2), (2, 7)], 4 << 20) == [(0, 2), (2, 4), (4, 6), (6, 7)]
    assert divided([(0, 2)], 1 << 30) == [(0, 1), (1, 2)]


def test_many_rows_need_the_memory_of_a_part(monkeypatch: pytest.MonkeyPatch) -> None:
    verified, params = build.min_p(), [{"min_p": 0.1 * row} for row in range(ROWS)]
    before, results, sizes = torch.randn(ROWS, WIDTH), [], []
    for part_bytes in (1, 3 * (WIDTH * 5 + 256), 1 << 20):
        monkeypatch.setattr(parts_module, "_PART_BYTES", part_bytes)
        runner, logits = Runner(), before.clone()
        runner.apply(verified, logits, range(ROWS), params)
        results.append(logits)
        sizes.append(held_bytes(runner))
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[1], results[2])
    assert sizes[0] < sizes[1] < sizes[2]


def test_no_part_runs_if_one_is_refused() -> None:
    verified, params = build.min_p(), [{"min_p": 0.5}] * 4
    runner, logits = Runner(max_bytes=900_000), torch.randn(ROWS, 151_936)
    before = logits.clone()
    runner.apply(verified, logits, [0], params[:1])
    assert not torch.equal(logits[0], before[0])
    logits = before.clone()
    with pytest.raises(LimitExceeded):
        runner.apply(verified, logits, [0, 3, 4, 5], params)  # parts of two rows
    assert torch.equal(logits, before)
