"""Servers that are added to a fleet get sessions of the others."""

from __future__ import annotations

import json
import os
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

from logitport import Client
from tests.end_to_end.engines import Engine, generating, sessions_of, start_together, targets
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from tests.conftest import RunningServer

ENGINES = 16
SESSION_AGE_SECONDS = 5.0
FORWARD_PASS_SECONDS = 0.05
MAX_SECONDS = 30.0
MAX_SHARE = 1.5


def test_two_servers_become_four(
    start_server: Callable[..., RunningServer], figure: Callable[[str, float], None], tmp_path: Path
) -> None:
    path = tmp_path / "servers.json"
    options = ("--no-entry-points", "--max-session-age", str(SESSION_AGE_SECONDS))
    cluster = start_together(start_server, [options] * 4)
    write(path, cluster[:2])
    with ExitStack() as stack:
        clients = [stack.enter_context(Client(f"file:{path}", timeout=200)) for _ in range(ENGINES)]
        engines = [Engine(client, seed) for seed, client in enumerate(clients)]
        with generating(engines, FORWARD_PASS_SECONDS):
            assert [sessions_of(server)[0] for server in cluster[2:]] == [0, 0]
            write(path, cluster)
            began = time.monotonic()
            wait_until(lambda: fullest_share(cluster) <= MAX_SHARE, lambda: f"the share is {fullest_share(cluster)}")
            seconds = time.monotonic() - began
        figure(f"two servers become four, session age {SESSION_AGE_SECONDS:.0f} s: time until even (s)", seconds)
        assert [engine.wrong for engine in engines] == [0] * ENGINES
        assert seconds < MAX_SECONDS


def write(path: Path, servers: Sequence[RunningServer]) -> None:
    """Replace the document as a whole, so that it is never read half-written."""
    new = path.with_suffix(".new")
    new.write_text(json.dumps([{"targets": targets(servers)}]))
    os.replace(new, path)


def fullest_share(cluster: Sequence[RunningServer]) -> float:
    """The sessions of the fullest server, divided by the mean."""
    sessions = [sessions_of(server)[0] for server in cluster]
    return max(sessions) * len(sessions) / sum(sessions)
