"""A rolling restart of all servers while engines and other callers use them."""

from __future__ import annotations

import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np

from logitport import Client, Request
from logitport.session.connection.frame_channel import FrameChannel
from logitport.session.connection.frame_connection import FrameConnection
from tests.conftest import free_address
from tests.end_to_end.engines import Engine, generating, sessions_of, start_together

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

    from tests.conftest import RunningServer

ENGINES = 8
FORWARD_PASS_SECONDS = 0.01


def test_it_costs_no_request(
    start_server: Callable[..., RunningServer],
    figure: Callable[[str, float], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lost: list[Any] = []
    monkeypatch.setattr(FrameChannel, "reopen", lambda self, *_: lost.append(self))
    opened_by: list[str] = []
    open_connection = FrameConnection.open

    def recorded(self: FrameConnection, *arguments: Any) -> None:
        opened_by.append(threading.current_thread().name)
        open_connection(self, *arguments)

    targets = [free_address() for _ in range(3)]
    options = [("--no-entry-points", "--listen", target, "--stop-seconds", "200") for target in targets]
    cluster = start_together(start_server, options)
    ended = threading.Event()
    with Client(targets, timeout=200) as client, ThreadPoolExecutor(1) as threads:
        engines = [Engine(client, seed) for seed in range(ENGINES)]
        monkeypatch.setattr(FrameConnection, "open", recorded)
        applied = threads.submit(apply_until, ended, targets)
        moved = 0
        try:
            with generating(engines, FORWARD_PASS_SECONDS):
                for place in range(3):
                    moved += sessions_of(cluster[place])[0]
                    cluster[place].process.send_signal(signal.SIGTERM)
                    assert cluster[place].process.wait(200) == 0
                    cluster[place] = start_server(*options[place])
        finally:
            ended.set()
        assert applied.result() > 0
        longest = max(engine.longest_step for engine in engines)
        figure("rolling restart of three servers: longest step of 8 engines (s)", longest)
        assert lost == []
        assert [engine.wrong for engine in engines] == [0] * ENGINES
        assert sum(engine.session.reconnects for engine in engines) == moved >= ENGINES
        # How long a step takes depends on the machine, but none waits for a list, a server or a registry.
        assert set(opened_by) == {"logitport-move"}


def apply_until(ended: threading.Event, targets: list[str]) -> int:
    """Make calls without a session until the event is set. Returns their number."""
    calls = 0
    request = Request(processors=[("disallowed_tokens", {"token_ids": [3]})])
    with Client(targets, timeout=200) as client:
        while not ended.wait(FORWARD_PASS_SECONDS):
            assert np.isinf(client.apply(np.zeros((1, 8), np.float32), [request]).logits[0, 3])
            calls += 1
    return calls
