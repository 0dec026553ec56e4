"""Each layer alone, all of them, and all but one stop exactly the attempts that `stopped_by` lists."""

import pytest

from logitport_sandbox import LAYER_NAMES, users
from logitport_sandbox.linux import landlock_version
from logitport_sandbox.verification.attempts import ATTEMPTS
from logitport_sandbox.verification.probe import probe

ALL = frozenset(LAYER_NAMES)
NONE: frozenset[str] = frozenset()
USERS = frozenset({"users"}) if users.lacking() is None else NONE
SCOPES = 6

# The machine itself may stop these attempts where no layer does. That depends on the owner of Python, and on the
# permissions of the machine's container.
MAY_BE_STOPPED_ANYWAY = {
    "Write to the folders that all workers read",
    "Change the kernel's settings",
    "Have core dumps made of it",
    "Reach the kernel's rarer calls",
    "Gain capabilities in a namespace of its own",
}

_ACTIVE = [
    pytest.param(ALL, id="all"),
    pytest.param(NONE, id="none", marks=pytest.mark.slow),
    *(pytest.param(frozenset({name}), id=f"{name} alone", marks=pytest.mark.slow) for name in LAYER_NAMES),
    *(pytest.param(ALL - {name}, id=f"all but {name}", marks=pytest.mark.slow) for name in LAYER_NAMES),
]


@pytest.mark.parametrize("active", _ACTIVE)
def test_active_layers_stop_exactly_their_attempts(need_layers, active):
    need_layers(*active)
    if active == {"landlock"} and landlock_version() < SCOPES:
        pytest.skip("Landlock alone stops all of its attempts from Linux 6.12 on")
    outcomes = {outcome.what: outcome for outcome in probe(without=ALL - active)}
    assert len(outcomes) == len(ATTEMPTS)
    wrong = []
    for attempt in ATTEMPTS:
        outcome = outcomes[attempt.what]
        to_be_stopped = any(enough <= active | USERS for enough in attempt.stopped_by)
        if outcome.stopped != to_be_stopped and (to_be_stopped or attempt.what not in MAY_BE_STOPPED_ANYWAY):
            wrong.append(outcome)
    assert not wrong


def test_all_layers_together_stop_every_attempt():
    assert all(any(enough <= ALL for enough in attempt.stopped_by) for attempt in ATTEMPTS)
