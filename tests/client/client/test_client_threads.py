"""A client that several threads use at once."""

from __future__ import annotations

import sys
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from logitport import Client, ServerUnavailable
from logitport.client import session_opening

if TYPE_CHECKING:
    from collections.abc import Iterator

NOWHERE = ["127.0.0.1:1", "127.0.0.1:2"]


class Opened:
    """In place of a session."""

    def close(self) -> None:
        pass


@pytest.fixture
def _often() -> Iterator[None]:
    """Threads take turns as often as possible."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-7)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("_often")
@pytest.mark.parametrize("method", ["logs", "close"])
def test_a_call_while_sessions_are_opened(monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    def unavailable(*_: Any) -> None:
        raise ServerUnavailable("nothing is sent")

    monkeypatch.setattr(session_opening, "open_session", lambda *_, **__: (Opened(), SimpleNamespace(server=None)))
    monkeypatch.setattr("logitport.client.call_sender.CallSender.reply", unavailable)
    client, kept = Client(NOWHERE), []
    ends = threading.Event()

    def opens() -> None:
        while not ends.is_set():
            kept.append(client.session(vocab_size=4))

    threads = [threading.Thread(target=opens) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(30):
            if method == "close":
                client.close()
            else:
                with pytest.raises(ServerUnavailable):
                    client.logs("a/b")
    finally:
        ends.set()
        for thread in threads:
            thread.join()
        client.close()
