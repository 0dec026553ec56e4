"""The parts of `make bench-bar` about the compiled core, with small batches and without SGLang.

The assertions do not depend on the speed of the machine.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest
from benchmarks import bar, costs, throughput
from benchmarks.engine_load import check_admission
from benchmarks.peers import Nothing, SGLang
from benchmarks.servers import connected
from benchmarks.workloads import Workload

from logitport_proto.processing_pb2 import SessionResponse

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SMALL = Workload(rows=3, history=64, vocab_size=40_000)


class Peer(Nothing):
    """In place of SGLang, which is not installed here."""

    name = SGLang.name

    def __init__(self, workload: Workload) -> None:
        pass


@pytest.fixture(scope="module")
def server_and_client() -> Iterator[Any]:
    with connected() as running:
        yield running


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    def workload(**fields: Any) -> Workload:
        return Workload(**{**SMALL.__dict__, **fields, "rows": SMALL.rows, "history": SMALL.history})

    def race(*arguments: Any, steps: int, **options: Any) -> Any:
        return measured(*arguments, steps=min(steps, 2), **options)

    measured = bar.race
    monkeypatch.setattr(bar, "race", race)
    monkeypatch.setattr(bar, "SGLang", Peer)
    for module, name, value in (
        *((module, "Workload", workload) for module in (bar, costs)),
        (costs, "_MANY", SMALL),
        *((module, "_STEPS", 2) for module in (costs, throughput)),
        (costs, "_ENGINE", SMALL),
        (costs, "_ENGINE_STEPS", 2),
        (costs, "_REQUESTS", 2),
        (throughput, "_WORKLOAD", SMALL),
        (throughput, "_WARM_UP", 1),
        (throughput, "_ENGINES", 2),
    ):
        monkeypatch.setattr(module, name, value)


@pytest.mark.parametrize(
    ("part", "targets"),
    [
        pytest.param(bar.not_overlapped, [1 / 80, 1 / 40, 0.6], id="not overlapped"),
        pytest.param(bar.histories, [1.1, 1.15], id="histories"),
        pytest.param(bar.round_trips, [0.35, 1.45], id="round trips"),
        pytest.param(costs.engine_thread, [0.12, 0.12], id="engine's thread"),
        pytest.param(costs.server_cpu, [0.8, 1.5], id="server CPU"),
    ],
)
def test_every_line_is_measured(server_and_client: Any, part: Callable[..., Any], targets: list[float]) -> None:
    found = list(part(*server_and_client))
    assert [line.bar for line in found if line.bar is not None] == targets
    assert all(line.measured.value > 0 for line in found)


def test_a_server_in_pure_python_is_measured_for_comparison(server_and_client: Any) -> None:
    names = [line.case for line in costs.server_cpu(*server_and_client)]
    assert sum(name.endswith("pure Python") for name in names) == 1


def test_row_steps_a_second_are_compared_with_one_core(server_and_client: Any) -> None:
    cores = os.sched_getaffinity(0)
    if len(cores) < 2:
        pytest.skip("needs two cores")
    found = list(throughput.row_steps(*server_and_client))
    assert [(line.bar, line.at_least) for line in found if line.bar is not None] == [(700.0, True), (1.7, True)]
    assert all(line.measured.value > 0 for line in found)
    assert os.sched_getaffinity(0) == cores, "only servers and engines are pinned"


def test_a_refused_admission_is_an_error() -> None:
    reply = SessionResponse(seq=1)
    reply.error.message = "refused"
    with pytest.raises(AssertionError, match="refused"):
        check_admission(reply.SerializeToString())
