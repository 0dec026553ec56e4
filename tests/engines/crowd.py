"""Sends requests of many users to an engine, each on a thread of its own."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

WAIT_SECONDS = 300.0


@dataclass(frozen=True)
class User:
    """A user with one request.

    Attributes:
        name: in reports.
        prompt: its ids.
        chain: its processors; None without a chain.
        tenant: value of the gateway's header; "" without.
        reads_logits: whether a processor of the chain reads logits.
        samples: `n`.
        streams: whether the response is streamed.
        leaves_after: disconnects after this number of events of the stream; 0: reads all.
        length: number of ids to generate.
    """

    name: str
    prompt: Sequence[int]
    chain: list[Any] | None = None
    tenant: str = ""
    reads_logits: bool = False
    samples: int = 1
    streams: bool = False
    leaves_after: int = 0
    length: int = 200

    @property
    def headers(self) -> dict[str, str]:
        """Headers of the request."""
        return {"X-Logitport-Tenant": self.tenant} if self.tenant else {}


@dataclass
class Answer:
    """Response to one request, up to now.

    Attributes:
        status: of HTTP; 0 before the response begins.
        rows: ids of each sample.
        finished: reason why each sample has ended.
        error: message of the error; "" without one.
        arrivals: when each event of the stream arrived.
        began: when the request was sent.
        ended: when the response was complete; 0.0 before.
    """

    status: int = 0
    rows: dict[int, list[int]] = field(default_factory=dict)
    finished: dict[int, str] = field(default_factory=dict)
    error: str = ""
    arrivals: list[float] = field(default_factory=list)
    began: float = 0.0
    ended: float = 0.0

    @property
    def succeeded(self) -> bool:
        """Whether it looks like success to its caller."""
        return self.status == 200 and not self.error

    def note_event(self) -> None:
        """Note that an event of the stream has arrived."""
        self.arrivals.append(time.monotonic())

    @property
    def longest_gap(self) -> float:
        """Seconds between two events of the stream, at most; also from the request to the first event."""
        times = [self.began, *self.arrivals]
        return max(later - earlier for earlier, later in pairwise(times))


class Crowd:
    """Sends requests, each on a thread of its own."""

    def __init__(self, ask: Callable[[User, Answer], None]) -> None:
        self._ask = ask
        self._threads: list[threading.Thread] = []
        self._stopped = threading.Event()

    def send(self, users: Sequence[User]) -> dict[str, Answer]:
        """Send all requests at the same time. The answers fill while they arrive."""
        answers = {user.name: Answer() for user in users}
        together = threading.Barrier(len(users))

        def run(user: User) -> None:
            together.wait()
            self._run(user, answers[user.name])

        self._start([threading.Thread(target=run, args=[user], daemon=True) for user in users])
        return answers

    def repeat(self, user: User) -> list[Answer]:
        """Send a user's request again and again, until `stop`."""
        answers: list[Answer] = []

        def run() -> None:
            while not self._stopped.is_set():
                answers.append(Answer())
                self._run(user, answers[-1])

        self._start([threading.Thread(target=run, daemon=True)])
        return answers

    def stop(self) -> None:
        """End `repeat`, and wait for it."""
        self._stopped.set()
        for thread in self._threads:
            thread.join(WAIT_SECONDS)
            assert not thread.is_alive()

    def _run(self, user: User, answer: Answer) -> None:
        answer.began = time.monotonic()
        try:
            self._ask(user, answer)
        except Exception as error:  # noqa: BLE001 - a thread's exception would not reach the test
            answer.error = answer.error or f"no answer: {error!r}"
        answer.ended = time.monotonic()

    def _start(self, threads: list[threading.Thread]) -> None:
        self._threads += threads
        for thread in threads:
            thread.start()


def wait_for(answers: dict[str, Answer]) -> dict[str, Answer]:
    """Wait until all answers are complete, and return them."""
    wait_until(lambda: all(answer.ended for answer in answers.values()))
    return answers


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait until the condition is true."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)
