"""The calls that a session's steps make: with several servers as many as with one."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from logitport import Client, Request
from tests.client.scripted import Script
from tests.client.session.transports.scripted_server import scripted_server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import grpc

VOCAB, STEPS = 4, 50


class Counted:
    """Servers that count the calls and the frames that they receive."""

    def __init__(self, stack: ExitStack, servers: int) -> None:
        self.received: Counter[str] = Counter()
        ports = [stack.enter_context(scripted_server(self._answer, self._intercept)) for _ in range(servers)]
        self.targets = [f"127.0.0.1:{port}" for port in ports]

    def _answer(self, _: int, frame: Any) -> dict[str, Any]:
        self.received[frame.WhichOneof("frame")] += 1
        return Script.correct(frame)

    def _intercept(self, details: grpc.HandlerCallDetails) -> None:
        self.received[details.method.rpartition("/")[2]] += 1


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


@pytest.mark.parametrize("form", ["address", "list", "document"])
def test_steps_make_no_other_calls(stack: ExitStack, form: str, tmp_path: Path) -> None:
    counted = Counted(stack, 1 if form == "address" else 3)
    path = tmp_path / "servers.json"
    path.write_text(f'[{{"targets": {counted.targets}}}]'.replace("'", '"'))
    client = stack.enter_context(Client({"address": counted.targets[0], "list": counted.targets}.get(form, path)))
    session = client.session(vocab_size=VOCAB)
    handle = session.add(Request([1]))
    opening = Counter({"Session": 1, "open": 1, "add": 1}) + Counter(GetLoad=0 if form == "address" else 2)
    assert counted.received == opening
    for _ in range(STEPS):
        session.step({handle: [2]}).apply(np.zeros((1, VOCAB), np.float32))
    assert counted.received - opening == {"step": STEPS}
