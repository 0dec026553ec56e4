"""Phases, loops and reports on the example engine while something interrupts it: tokens and reports stay the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from examples.engine import Engine, Model
from logitport import Client, ServerUnavailable
from tests.compatibility.behaviors import BEHAVIORS
from tests.compatibility.example_engine import MAX_DRAFTS, VOCAB, check, drafts_of
from tests.conftest import free_address

if TYPE_CHECKING:
    from collections.abc import Callable

    from examples.engine import Generation

every_behavior = pytest.mark.parametrize("row", BEHAVIORS)
with_and_without_drafts = pytest.mark.parametrize("drafts", [0, MAX_DRAFTS], ids=["no drafts", "drafts"])


class Interrupted(Engine):
    """Calls `interrupt` before every seventh step. Requests can be left out of five steps.

    Attributes:
        preempted: the requests that are left out, and the step until which they are.
    """

    def __init__(self, interrupt: Callable[[Interrupted], None], row: str, drafts: int, session: Any) -> None:
        super().__init__(session, Model(VOCAB), draft=drafts_of(row) if drafts else None)
        self.interrupt = interrupt
        self.interruptions = 0
        self.preempted: list[tuple[Generation, int]] = []

    def step(self) -> None:
        if self.steps % 7 == 6:
            self.interrupt(self)
            self.interruptions += 1
        super().step()
        is_idle = not (self.running or self.waiting)
        self.running += [one for one, until in self.preempted if is_idle or until <= self.steps]
        self.preempted = [(one, until) for one, until in self.preempted if not is_idle and until > self.steps]

    def preempt(self) -> None:
        """Leave every second request out of some steps, and drop its cache."""
        for one in self.running[1::2]:
            one.cached = 0
            self.running.remove(one)
            self.preempted.append((one, self.steps + 5))


def lose_connection(engine: Interrupted) -> None:
    engine.session._channel.lose(ServerUnavailable("lost"))


@with_and_without_drafts
@pytest.mark.parametrize("interrupt", [lose_connection, Interrupted.preempt], ids=["reconnects", "preemption"])
@every_behavior
def test_interruptions_change_nothing(client: Client, row: str, interrupt: Any, drafts: int) -> None:
    with client.session(vocab_size=VOCAB, dtype="float32", max_draft_tokens=drafts, reconnect_seconds=60.0) as session:
        engine = Interrupted(interrupt, row, drafts, session)
        check(engine, client, row)
        assert engine.interruptions > 3
        assert session.reconnects == (engine.interruptions if interrupt is lose_connection else 0)


@with_and_without_drafts
@every_behavior
def test_each_of_two_samples_has_its_own(client: Client, row: str, drafts: int) -> None:
    with client.session(vocab_size=VOCAB, dtype="float32", max_draft_tokens=drafts) as session:
        check(Interrupted(Interrupted.preempt, row, drafts, session), client, row, samples=2)


@with_and_without_drafts
@every_behavior
def test_a_server_is_killed(start_server: Callable[..., Any], row: str, drafts: int) -> None:
    """Twice; each time, another server then has its address."""
    target = free_address()
    options = ("--listen", target, "--enable-custom-logit-processor", "--isolation", "none")
    servers = [start_server(*options)]

    def kill(engine: Interrupted) -> None:
        if engine.interruptions not in (1, 2):
            return
        servers[-1].process.kill()
        servers[-1].process.wait()
        servers.append(start_server(*options))

    with (
        Client(target, timeout=200) as client,
        client.session(vocab_size=VOCAB, dtype="float32", max_draft_tokens=drafts) as session,
    ):
        check(Interrupted(kill, row, drafts, session), client, row)
        assert session.reconnects == len(servers) - 1 == 2
