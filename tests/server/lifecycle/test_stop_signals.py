"""Signals that reach a server while it creates what outlives it."""

from __future__ import annotations

import signal
import threading
from typing import TYPE_CHECKING

import pytest

from logitport_server.lifecycle.stop_signals import StoppedBeforeReady, StopSignals, signals_deferred

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """Those of before, after each test."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_deferred_signal_ends_the_server_after_the_context(number: signal.Signals) -> None:
    StopSignals()
    steps = []
    with pytest.raises(StoppedBeforeReady):  # noqa: SIM117, PT012 - raised at the end of the inner context
        with signals_deferred():
            signal.raise_signal(number)
            steps.append("created")
    assert steps == ["created"]


def test_after_the_context_a_signal_has_its_handler_again() -> None:
    StopSignals()
    with signals_deferred():
        pass
    with pytest.raises(StoppedBeforeReady):
        signal.raise_signal(signal.SIGTERM)


def test_in_another_thread_handlers_stay() -> None:
    StopSignals()
    before, during = signal.getsignal(signal.SIGTERM), []

    def defer() -> None:
        with signals_deferred():
            during.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=defer)
    thread.start()
    thread.join()
    assert during == [before]
