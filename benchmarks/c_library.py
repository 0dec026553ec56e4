"""Steps of liblogitport beside steps of the Python SDK: `python -m benchmarks.c_library`, and `publish`.

Two engines have the same requests, one in C++ (`c_steps.cpp`) and one in Python, and take turns. The time is that of
the engine's thread without the forward pass, which sleeps. Built-ins only, on the local transport and embedded. The
library is built first.
"""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import suite
from benchmarks.kinds import END, START
from benchmarks.measure import LOWER_QUARTILE, ROUNDS, ratio
from benchmarks.records import BarLine
from benchmarks.report import Report
from benchmarks.servers import logitport_server
from benchmarks.workloads import Workload
from logitport import Client, Request

_BAR = 0.5
_STEPS, _WARM_UP = 40, 5
_FORWARD_SECONDS = 0.003
_CORE = Path(__file__).parents[1] / "core"
_TAGS = {"thinking_start_ids": [START], "thinking_end_ids": [END]}
_CHAINS: list[tuple[str, dict[str, Any]]] = [
    ("thinking_budget", {"thinking_budget": 1 << 20, **_TAGS}),
    ("no_repeat_ngram", {"ngram_size": 3}),
    ("disallowed_tokens", {"token_ids": [5, 9, 77]}),
]


def run() -> Report:
    """Run all parts."""
    with tempfile.TemporaryDirectory() as folder:
        driver = _driver(Path(folder))
        return suite.run({"C library": lambda: _steps(driver)})


def _driver(folder: Path) -> ctypes.CDLL:
    """Build the library and `c_steps.cpp`, and load them."""
    cmake, built = [sys.executable, "-m", "cmake"], _CORE / "build" / "library"
    driver, source = folder / "c_steps.so", Path(__file__).with_name("c_steps.cpp")
    link = [f"-L{built}", f"-Wl,-rpath,{built}", "-llogitport"]
    for command in (
        [*cmake, "-S", _CORE / "library", "-B", built],
        [*cmake, "--build", built],
        ["c++", "-O2", "-std=c++17", "-shared", "-fPIC", f"-I{_CORE}/include", source, *link, "-o", driver],
    ):
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    loaded = ctypes.CDLL(str(driver))
    loaded.bench_open.restype = ctypes.c_void_p
    loaded.bench_begin.restype = loaded.bench_finish.restype = ctypes.c_double
    return loaded


def _steps(driver: ctypes.CDLL) -> Iterator[BarLine]:
    with logitport_server() as server:
        for name, target in (("local transport", server.target), ("embedded", None)):
            for rows in (8, 256):
                own, python = _race(driver, target, Workload(rows=rows))
                case = f"{name}, {rows} rows: a step of the C library ÷ of the Python SDK, on the engine's thread"
                yield BarLine(case, ratio(own, python, LOWER_QUARTILE), _BAR)


def _race(driver: ctypes.CDLL, target: str | None, workload: Workload) -> tuple[Any, Any]:
    """Return the seconds of each step of the library and of the SDK, float64[rounds, steps]."""
    histories, half = np.ascontiguousarray(workload.histories()), workload.history // 2
    logits = np.zeros((workload.rows, workload.vocab_size), np.float32)
    names = (ctypes.c_char_p * len(_CHAINS))(*[name.encode() for name, _ in _CHAINS])
    params = (ctypes.c_char_p * len(_CHAINS))(*[json.dumps(params).encode() for _, params in _CHAINS])
    engine = ctypes.c_void_p(
        driver.bench_open(
            *(None if target is None else target.encode(), workload.vocab_size),
            *(ctypes.c_void_p(histories.ctypes.data), ctypes.c_size_t(workload.rows)),
            *(ctypes.c_size_t(workload.history), names, params, ctypes.c_size_t(len(_CHAINS))),
        )
    )
    assert engine.value
    times = np.empty((ROUNDS * _STEPS + _WARM_UP, 2))
    clock = time.perf_counter
    with Client(target or "embedded") as client, client.session(vocab_size=workload.vocab_size) as session:
        handles = [
            session.add(Request(ids[:half], ids[half:], processors=[_CHAINS[row % len(_CHAINS)]]))
            for row, ids in enumerate(histories.tolist())
        ]
        for step, ids in enumerate(workload.sampled(len(times))):
            column = (ctypes.c_int32 * workload.rows)(*ids)
            new_ids = {handle: [one] if step else [] for handle, one in zip(handles, ids, strict=True)}
            for contestant in (0, 1) if step % 2 else (1, 0):  # in both orders: each finds the other's caches
                started = clock()
                if contestant == 0:
                    begun = driver.bench_begin(engine, column)
                else:
                    pending = session.step(new_ids)
                    begun = (clock() - started) * 1e9
                time.sleep(_FORWARD_SECONDS)
                started = clock()
                if contestant == 0:
                    finished = driver.bench_finish(engine, ctypes.c_void_p(logits.ctypes.data))
                else:
                    pending.apply(logits, check=False)
                    finished = (clock() - started) * 1e9
                assert begun >= 0
                assert finished >= 0
                times[step, contestant] = (begun + finished) / 1e9
    driver.bench_close(engine)
    own, python = np.moveaxis(times[_WARM_UP:].reshape(ROUNDS, _STEPS, 2), -1, 0)
    return own, python


if __name__ == "__main__":
    suite.main("c_library", __doc__, "c_library", run)
