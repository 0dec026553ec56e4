"""Twenty users of one engine, of which some are hostile, and a restart of the service: the part that engines share.

Decoding is greedy (`n=2` by `top_k=1`, because vLLM refuses greedy sampling there). The wide weights of the checkpoint
(`tests/engines/checkpoint.py`) give the likeliest id a lead that exceeds the rounding errors of another batch. So an
output does not depend on the other requests of the batch.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from logitport import Client
from tests.engines.crowd import Answer, Crowd, User, wait_for, wait_until
from tests.engines.hostile_processors import SHIFT, HangsInCall, Searches, SearchesWithLogits, SleepsInCheck
from tests.shipped_processors import ForcesLengths, RaisesAfter, Tilt

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from tests.conftest import RunningServer

SECRET = (401, 467, 433, 419)  # in each prompt of an innocent user
PROCESSOR_SECONDS = 8.0
SERVICE = (
    *("--enable-custom-logit-processor", "--require-tenant"),
    *("--processor-timeout-seconds", str(PROCESSOR_SECONDS), "--load-timeout-seconds", "10"),
)
# For the engine. The step timeout exceeds twice the load timeout, also on a busy machine.
VARIABLES = {
    "LOGITPORT_REQUEST_PROCESSORS": "builtin,registered,shipped",
    "LOGITPORT_STEP_TIMEOUT_SECONDS": "200",
}
_REGISTERED = {"team/tilt:v1": Tilt, "team/lengths:v1": ForcesLengths, "team/searches:v1": Searches}


def _innocent() -> list[User]:
    unique = [["no_repeat_ngram", {"ngram_size": 1, "window_size": 300}]]
    without_thirds = [["disallowed_tokens", {"token_ids": list(range(2, 500, 3))}]]
    tilt, lengths = [["team/tilt:v1", {"by": 4.0}]], [["team/lengths:v1", {}]]
    shipped_tilt, shipped_lengths = [[Tilt.to_str(), {"by": 3.0}]], [[ForcesLengths.to_str(), {}]]
    users = [
        ("plain", None, "", {}),
        ("plain, stream", None, "", {"streams": True}),
        ("plain, n=2", None, "", {"samples": 2}),
        ("built-in, stream", unique, "acme", {"streams": True}),
        ("built-in", unique, "globex", {}),
        ("built-in, n=2", without_thirds, "acme", {"samples": 2}),
        ("two built-ins, stream", unique + without_thirds, "initech", {"streams": True}),
        ("registered, stream", tilt, "acme", {"streams": True, "reads_logits": True}),
        ("registered", tilt, "globex", {"reads_logits": True}),
        ("registered, n=2", lengths, "initech", {"samples": 2}),
        ("shipped, stream", shipped_tilt, "globex", {"streams": True, "reads_logits": True}),
        ("shipped", shipped_lengths, "initech", {}),
    ]
    return [
        User(name, (20 + place, *SECRET, 60 + place), chain, tenant, **options)
        for place, (name, chain, tenant, options) in enumerate(users)
    ]


def _leaving() -> list[User]:
    unique = [["no_repeat_ngram", {"ngram_size": 2, "window_size": 50}]]
    chains = {"plain, leaves": None, "built-in, leaves": unique, "shipped, leaves": [[Tilt.to_str(), {"by": 2.0}]]}
    return [
        User(
            name,
            (100 + place, *SECRET),
            chain,
            "acme" if chain else "",
            reads_logits=name.startswith("shipped"),
            streams=True,
            leaves_after=10,
        )
        for place, (name, chain) in enumerate(chains.items())
    ]


def _searching() -> list[User]:
    shifted = {"shifted": [token_id + SHIFT for token_id in SECRET]}
    return [
        User("searches, registered", (5, 6, 7), [["team/searches:v1", shifted]], "mallory", length=100),
        User("searches, shipped", (5, 6, 7), [[SearchesWithLogits.to_str(), shifted]], "eve", length=100),
    ]


INNOCENT = _innocent()
LEAVING = _leaving()
# These fail. Each has a tenant of its own.
FAILING = [
    User("sleeps in its check", (5, 6, 7), [[SleepsInCheck.to_str(), {"seconds": 3600}]], "trent"),
    User("hangs in its call", (5, 6, 7), [[HangsInCall.to_str(), {}]], "oscar"),
    User("raises", (5, 6, 7), [[RaisesAfter.to_str(), {"at": 5}]], "trudy", streams=True),
]
SEARCHING = _searching()
USERS = [*INNOCENT, *LEAVING, *FAILING, *SEARCHING]
PULSE = User("plain, again and again", (200, 201, 202), length=8)
# Sent while the service is away. The chain of the first was accepted before, that of the second was not.
KNOWN_LATE, NEW_LATE, PLAIN_LATE = (
    User("known chain", (300, *SECRET), INNOCENT[4].chain, "globex", length=16),
    User("new chain", (301, *SECRET), [["disallowed_tokens", {"token_ids": [9]}]], "globex", length=16),
    User("no chain", (302, *SECRET), length=16),
)
LATE = [KNOWN_LATE, NEW_LATE, PLAIN_LATE]


@dataclass
class Report:
    """Answers to the users.

    Attributes:
        alone: answer to each innocent user's request, one after the other.
        own_secret: answers to searching users that have the secret in their own prompt.
        together: answers to all users at the same time.
        restarted: the same; the service is killed when each stream has begun, and started again.
        interrupted: users with a chain and a response that had begun, and had not ended, when the service was killed.
        late: answers to requests that were sent while the service was away.
        late_before: names of those that were answered while it was away.
        outage_seconds: from the kill until the service listens again.
        pulses: answers to the user without a chain that sends requests one after the other.
        phases: begin and end of "together", and of the time "after the restart".
        admission_status: the status of the engine for a processor that fails at the admission of a request.
    """

    alone: dict[str, Answer]
    own_secret: dict[str, Answer]
    together: dict[str, Answer]
    restarted: dict[str, Answer] = field(default_factory=dict)
    interrupted: set[str] = field(default_factory=set)
    late: dict[str, Answer] = field(default_factory=dict)
    late_before: set[str] = field(default_factory=set)
    outage_seconds: float = 0.0
    pulses: list[Answer] = field(default_factory=list)
    phases: dict[str, tuple[float, float]] = field(default_factory=dict)
    admission_status: int = 500


def register(target: str) -> None:
    """Register the processors that some users name."""
    with Client(target) as client:
        for name, kind in _REGISTERED.items():
            client.register(kind, name=name)


def play(
    ask: Callable[[User, Answer], None],
    service: RunningServer,
    start_again: Callable[[], AbstractContextManager[RunningServer]],
    *,
    refuses_new: bool,
    admission_status: int = 500,
) -> Report:
    """Send the requests of all users alone, together, and with a restart of the service.

    Args:
        ask: sends a request to the engine.
        service: the service; it is killed.
        start_again: starts the service again, on the same address and store.
        refuses_new: whether the engine answers a new chain while the service is away.
        admission_status: see `Report`.
    """
    crowd = Crowd(ask)
    alone = {}
    for user in [*INNOCENT, *LEAVING, PULSE, *LATE[::2]]:
        alone |= wait_for(crowd.send([user]))
    # Of other tenants: freed memory of these requests stays in the heaps of their workers.
    own_secret = [User(user.name, (5, *SECRET), user.chain, f"{user.tenant} alone", length=4) for user in SEARCHING]
    report = Report(alone, wait_for(crowd.send(own_secret)), {}, admission_status=admission_status)
    report.pulses = crowd.repeat(PULSE)

    began = time.monotonic()
    report.together = wait_for(crowd.send(USERS))
    report.phases["together"] = (began, time.monotonic())

    report.restarted = crowd.send(USERS)
    streams = [user for user in INNOCENT if user.streams and user.chain]
    wait_until(lambda: all(report.restarted[user.name].arrivals for user in streams))
    wait_for(crowd.send([KNOWN_LATE]))  # so that vLLM has accepted its chain within the last minute
    killed = time.monotonic()
    service.process.kill()
    service.process.wait()
    report.interrupted = {user.name for user in streams if not report.restarted[user.name].ended}
    with ExitStack() as stack:
        report.late = crowd.send(LATE)
        if refuses_new:
            wait_until(lambda: bool(report.late[NEW_LATE.name].ended))
        else:
            time.sleep(2)  # most of the requests reach the engine meanwhile; those that do not are answered alike
        report.late_before = {name for name, answer in report.late.items() if answer.ended}
        stack.enter_context(start_again())
        back = time.monotonic()
        report.outage_seconds = back - killed
        wait_for(report.restarted)
        wait_for(report.late)
        wait_until(lambda: report.pulses[-1].began > back)
        crowd.stop()
    report.phases["after the restart"] = (back, time.monotonic())
    return report
