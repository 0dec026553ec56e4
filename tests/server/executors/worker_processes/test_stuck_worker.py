"""Where a processor was stuck that has exceeded its deadline."""

from __future__ import annotations

import faulthandler
import itertools
import signal
import time
from typing import TYPE_CHECKING, Any

import pytest

from logitport import EditProcessor, EditRequest, History, ProcessorFailed, RowEdits
from logitport_server.executors.worker_processes import worker_process
from logitport_session.dialects import RequestContext

if TYPE_CHECKING:
    from collections.abc import Callable

    from logitport_runner.process_executor import ProcessExecutor
    from logitport_session.processor_sources.source import Source


class Sticks(EditProcessor):
    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        self.call(request.params["how"])

    def call(self, how: str) -> None:
        if how == "loop":
            while how:  # stuck in loop
                how = how[:1]  # stuck in loop
        elif how == "C":
            sum(itertools.count())  # stuck in C
        elif how == "deep":
            self.recurse(300)
        elif how == "no handler":
            faulthandler.unregister(signal.SIGUSR1)
            time.sleep(1000)

    def recurse(self, depth: int) -> None:
        if depth:
            self.recurse(depth - 1)
        time.sleep(1000)  # stuck in deep


@pytest.fixture
def a_slow_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers have long to write their stacks."""
    monkeypatch.setattr(worker_process, "STACK_SECONDS", 60.0)


def error_of(executor: ProcessExecutor, source: Source, how: str) -> ProcessorFailed:
    try:
        dialect = executor.load(source)
        state: Any = dialect.start(RequestContext("r", History([1]), {}, 8), {"how": how})
        dialect.edit([state])
    except ProcessorFailed as error:
        return error
    raise AssertionError("it has returned")


@pytest.mark.slow
@pytest.mark.usefixtures("a_slow_machine")
@pytest.mark.parametrize(("how", "function"), [("loop", "call"), ("C", "call"), ("deep", "recurse")])
def test_the_error_names_the_line(
    impatient: ProcessExecutor, ship: Callable[..., Source], how: str, function: str
) -> None:
    error = error_of(impatient, ship(Sticks, tenant=f"engine {how}"), how)
    assert f" of test_stuck_worker.py, in {function}" in error.message
    assert f"# stuck in {how}" in error.remote_traceback
    assert '", line ' in error.remote_traceback
    assert f", in {function}\n" in error.remote_traceback


@pytest.mark.slow
def test_a_processor_that_hides_its_stack_is_ended_all_the_same(
    impatient: ProcessExecutor, ship: Callable[..., Source]
) -> None:
    error = error_of(impatient, ship(Sticks), "no handler")
    assert "its worker was ended: look for a loop" in error.message
    assert "it was at" not in error.message
