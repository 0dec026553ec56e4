"""Prices are measured once, and read from a file that no other user can change."""

from __future__ import annotations

import math
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import TYPE_CHECKING

import pytest
import torch
from hypothesis import HealthCheck, given, settings

from logitport.errors import InvalidArgument, InvalidProgram, LimitExceeded
from logitport.programs.cost import cache, prices, torch_engine
from logitport.programs.cost.limits import milliseconds
from logitport.programs.cost.measurement import Measured, Price
from logitport.programs.cost.operands import cases, keys
from logitport.programs.cost.work import FILLED, key_of
from logitport.programs.verifier import verify
from tests.client.programs.strategies import programs
from tests.tiers import examples

if TYPE_CHECKING:
    from pathlib import Path

    from logitport.programs.program import Program

MEASURED = Measured({"exp.float32.plain": Price(20.0, 1500.0)}, 0.02, 500.0)
ALL_KEYS = {key for key, *_ in keys()} | {key_of(operator, (), plain=True) for operator in FILLED}


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with prices._lock:  # the thread of an earlier session may still measure
        monkeypatch.setattr(prices, "_found", {})
    return cache.path_of("test")


def test_prices_are_read_back(path: Path) -> None:
    assert cache.load(path) is None
    cache.store(path, MEASURED)
    assert cache.load(path) == MEASURED
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    assert cache.path_of("other") != path


def test_a_second_process_does_not_measure(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    monkeypatch.setattr(torch_engine, "measure_torch", lambda device: calls.append(device) or MEASURED)
    first = prices.prices()
    assert prices.prices() is first
    monkeypatch.setattr(prices, "_found", {})
    assert prices.prices() == first == prices.Prices(*MEASURED)
    assert len(calls) == 1


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


def _change_a_digit(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"20.0", b"10.0"))


def _lower(path: Path) -> None:
    cache.store(path, Measured({"exp.float32.plain": Price(-1.0, 1.0)}, 0.02, 500.0))


def _nothing(path: Path) -> None:
    path.write_bytes(b"")


def _huge(path: Path) -> None:
    path.write_bytes(b"x" * (1 << 20))


def _replace_by_link(path: Path) -> None:
    path.rename(path.with_name("other"))
    path.symlink_to("other")


def _replace_by_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _let_all_write(path: Path) -> None:
    path.chmod(0o666)


def _let_all_write_to_the_folder(path: Path) -> None:
    path.parent.chmod(0o777)


DAMAGES = [
    _truncate, _change_a_digit, _lower, _nothing, _huge, _replace_by_link, _replace_by_pipe, _let_all_write,
    _let_all_write_to_the_folder,
]  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_file_that_is_not_to_be_used(path: Path, damage: object) -> None:
    cache.store(path, MEASURED)
    assert cache.load(path) == MEASURED
    damage(path)  # type: ignore[operator]
    assert cache.load(path) is None


def test_a_file_of_another_user(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.store(path, MEASURED)
    monkeypatch.setattr(os, "geteuid", lambda: path.stat().st_uid + 1)
    assert cache.load(path) is None


def test_a_folder_that_cannot_be_made(path: Path) -> None:
    path.parent.write_text("a file")
    cache.store(path, MEASURED)
    assert cache.load(path) is None


def test_without_torch(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(InvalidArgument, match="prices are those of torch, which is not installed"):
        prices.prices()


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int64"])
def test_sums_along_a_far_axis_are_timed(dtype: str) -> None:
    """Each step is in another page, of the operand and of the result, as along the first axis of a large matrix."""
    far = [case for case in cases("cumsum", (dtype,), 256, plain=False) if case.is_far]
    assert far
    for case in far:
        (operand,) = case.operands
        assert operand.strides[-case.value.axis] * getattr(torch, dtype).itemsize >= 4096
        assert operand.shape[-case.value.axis] >= 1024
        ones = torch_engine.TorchEngine(torch.device("cpu")).prepare(case, 2)
        ones()


@settings(max_examples=examples(100), deadline=None, suppress_health_check=list(HealthCheck))
@given(programs())
def test_each_value_has_a_price(program: Program) -> None:
    priced = prices.Prices(dict.fromkeys(ALL_KEYS, Price(1.0, 1.0)), 1.0, 1.0)
    try:
        assert milliseconds(verify(program), 20, priced=priced) > 0
    except (InvalidProgram, LimitExceeded):
        return


def test_each_price_has_inputs() -> None:
    for key, operator, dtypes, plain in keys():
        for count in (4, 256, 2048):
            found = list(cases(operator, dtypes, count, plain=plain))
            assert found, key
            assert all(math.isfinite(case.units) and case.units > 0 for case in found)


def test_measuring_leaves_the_threads_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those of threads that begin meanwhile."""
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        found = []

        def measure(_: object) -> Measured:
            found.append(torch.get_num_threads())
            with ThreadPoolExecutor(1) as later:
                found.append(later.submit(torch.get_num_threads).result())
            return MEASURED

        monkeypatch.setattr(torch_engine, "measure", measure)
        torch_engine.measure_torch(torch.device("cpu"))
        assert [*found, torch.get_num_threads()] == [1, 3, 3]
    finally:
        torch.set_num_threads(before)


def test_known_prices_do_not_wait(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measuring, end = Event(), Event()

    def measure_torch(_: object) -> Measured:
        measuring.set()
        end.wait()
        return MEASURED

    monkeypatch.setattr(torch_engine, "measure_torch", measure_torch)
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(prices.prices)
        measuring.wait()
        assert prices.known_prices("cpu") is prices.ASSUMED
        end.set()
    assert prices.known_prices("cpu") is found.result()


@pytest.mark.slow
def test_measuring(path: Path) -> None:
    """Prices of this machine: positive, and those of a sort are above those of an addition."""
    measured = prices.prices()
    assert measured.operators.keys() == ALL_KEYS
    assert cache.load(next(path.parent.iterdir())) == Measured(*measured)
    sort, addition = (measured.operators[f"{operator}.float32.plain"].unit for operator in ("argsort", "add"))
    assert sort * math.log2(151_936) > addition
