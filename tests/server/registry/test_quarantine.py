"""The quarantine of processors."""

from __future__ import annotations

import pytest

from logitport import ProcessorFailed
from logitport_server.registry.quarantine import Quarantine
from logitport_session.trust.principals import Party, TrustDomain
from tests.clock import Clock

ONE, OTHER = TrustDomain("one", Party("engine")), TrustDomain("engine", Party("engine", "other"))
DIGEST = "0123456789abcdef" * 4
CALL_SECONDS = 2.0


@pytest.fixture
def clock() -> Clock:
    return Clock(1000.0)


@pytest.fixture
def breaker(clock: Clock) -> Quarantine:
    return Quarantine(3, CALL_SECONDS, clock)


def caller(principal: str, tenant: str = "") -> TrustDomain:
    """The trust domain of a shared processor that this principal calls."""
    return TrustDomain("author", Party(principal, tenant))


def is_quarantined(breaker: Quarantine, domain: TrustDomain | None, digest: str = DIGEST) -> bool:
    try:
        breaker.check(domain, digest, "a name")
    except ProcessorFailed:
        return True
    return False


def quarantine(breaker: Quarantine, domain: TrustDomain | None, digest: str = DIGEST) -> None:
    for _ in range(3):
        breaker.record_failure(domain, digest, "it crashed")
    assert is_quarantined(breaker, domain, digest)


def test_failures_are_charged_the_call_timeout(breaker: Quarantine) -> None:
    for at in range(3):
        assert not is_quarantined(breaker, ONE)
        breaker.record_failure(ONE, DIGEST, f"failure {at}", seconds=0.001)
    assert is_quarantined(breaker, ONE)
    assert not is_quarantined(breaker, OTHER)
    assert (len(breaker), breaker.failures) == (1, 3)
    assert breaker.reason(DIGEST) == breaker.reason(DIGEST, "one")
    assert breaker.reason(DIGEST) == (
        "3 failures or slow calls within 600 s were charged 6 s, the limit is 6 s (--quarantine-after), "
        "the last one: failure 2"
    )
    assert breaker.reason(DIGEST, "engine") == ""
    assert breaker.reason("another") == ""


def test_a_failure_is_charged_the_seconds_that_it_took(breaker: Quarantine) -> None:
    breaker.record_failure(ONE, DIGEST, "loading it took over 5.9 s", seconds=5.9)
    assert not is_quarantined(breaker, ONE)
    breaker.record_failure(OTHER, DIGEST, "loading it took over 6 s", seconds=6.0)
    assert is_quarantined(breaker, OTHER)


def test_a_successful_call_does_not_clear_charges(breaker: Quarantine, clock: Clock) -> None:
    """A processor that hangs at every second call takes a deadline from its engine each time."""
    for _ in range(3):
        assert not is_quarantined(breaker, ONE)
        breaker.record_failure(ONE, DIGEST, "its call took over 2 s", seconds=2.0)
        breaker.record_call(ONE, DIGEST, 0.001)
        clock.now += 3
    assert is_quarantined(breaker, ONE)


def test_slow_calls_are_charged_the_seconds_that_they_took(breaker: Quarantine) -> None:
    for _ in range(1000):
        breaker.record_call(ONE, DIGEST, CALL_SECONDS / 2)
    for _ in range(3):
        breaker.record_call(ONE, DIGEST, 1.9)
    assert not is_quarantined(breaker, ONE)
    breaker.record_call(ONE, DIGEST, 1.1)
    assert is_quarantined(breaker, ONE)
    assert breaker.reason(DIGEST).endswith("were charged 6.8 s, the limit is 6 s (--quarantine-after), the last one: "
                                           "a call took 1.1 s of the 2 s that it may take")  # fmt: skip
    assert breaker.failures == 0


def test_charges_leave_after_the_window(breaker: Quarantine, clock: Clock) -> None:
    for _ in range(8):
        breaker.record_failure(ONE, DIGEST, "")
        clock.now += 300
    assert not is_quarantined(breaker, ONE)
    breaker.record_failure(ONE, DIGEST, "")
    breaker.record_failure(ONE, DIGEST, "")
    assert is_quarantined(breaker, ONE)


def test_only_lifting_ends_it(breaker: Quarantine, clock: Clock) -> None:
    for domain in (ONE, OTHER):
        quarantine(breaker, domain)
        breaker.record_call(domain, DIGEST, 0.001)
        clock.now += 36000
        assert is_quarantined(breaker, domain)
    assert breaker.lift(DIGEST)
    assert not is_quarantined(breaker, ONE)
    assert not is_quarantined(breaker, OTHER)
    assert not breaker.lift(DIGEST)
    breaker.record_failure(ONE, DIGEST, "")
    assert not is_quarantined(breaker, ONE)


def test_a_caller_quarantines_a_shared_processor_only_for_itself(breaker: Quarantine) -> None:
    for tenant in map(str, range(9)):
        quarantine(breaker, caller("attacker", tenant))
    quarantine(breaker, caller("accomplice"))
    assert not is_quarantined(breaker, caller("victim"))
    assert not is_quarantined(breaker, caller("attacker", "unaffected"))


def test_a_processor_that_three_principals_have_in_quarantine_is_quarantined_for_all(breaker: Quarantine) -> None:
    for principal in ("a", "b", "c"):
        assert not is_quarantined(breaker, caller("other"))
        quarantine(breaker, caller(principal))
    with pytest.raises(ProcessorFailed, match=r"3 principals.*crashed"):
        breaker.check(caller("other"), DIGEST, "a name")
    assert not is_quarantined(breaker, caller("other"), "another")
    assert breaker.lift(DIGEST)
    assert not is_quarantined(breaker, caller("other"))


def test_principals_without_a_name_count_as_one(breaker: Quarantine) -> None:
    for tenant in map(str, range(9)):
        quarantine(breaker, caller("", tenant))
    quarantine(breaker, None)
    quarantine(breaker, caller("b"))
    assert not is_quarantined(breaker, caller("other"))


def test_failures_of_others_do_not_evict_a_quarantine(breaker: Quarantine) -> None:
    quarantine(breaker, caller("victim"))
    for number in range(2000):
        for _ in range(3):
            breaker.record_failure(caller("stranger", f"{number}"), f"{number}", "")
    assert is_quarantined(breaker, caller("victim"))
    assert len(breaker) == 1 + 128
    assert is_quarantined(breaker, caller("stranger", "1999"), "1999")
    assert not is_quarantined(breaker, caller("stranger", "0"), "0")


def test_records_without_a_quarantine_are_evicted_first(breaker: Quarantine) -> None:
    quarantine(breaker, ONE)
    for number in range(2000):
        breaker.record_failure(ONE, f"{number}", "")
    assert is_quarantined(breaker, ONE)
    for number in (1999, 0):
        for _ in range(2):
            breaker.record_failure(ONE, f"{number}", "")
    assert is_quarantined(breaker, ONE, "1999")
    assert not is_quarantined(breaker, ONE, "0")  # its first charge was evicted


def test_principals_are_bounded(breaker: Quarantine) -> None:
    quarantine(breaker, caller("first"))
    for number in range(1200):
        breaker.record_failure(caller(f"{number}"), DIGEST, "")
    assert len(breaker._records) == 1024
    assert is_quarantined(breaker, caller("first"))
    for number in range(1200):
        quarantine(breaker, caller(f"{number}"), f"{number}")
    assert len(breaker) == len(breaker._records) == 1024
    assert not is_quarantined(breaker, caller("first"))


def test_the_message_names_the_remedy() -> None:
    breaker = Quarantine(1, CALL_SECONDS)
    breaker.record_failure(ONE, DIGEST, "its worker ended with status 3")
    with pytest.raises(ProcessorFailed, match=f"status 3.*logitport processors unquarantine TARGET {DIGEST}") as raised:
        breaker.check(ONE, DIGEST, "Ban (sha256:0123)")
    assert raised.value.processor == "Ban (sha256:0123)"


def test_changes_are_reported_at_once(breaker: Quarantine) -> None:
    """Otherwise its lifting on another server, before the next poll, would have no effect."""
    changes: list[bool] = []
    breaker.track_changes(lambda: changes.append(True))
    quarantine(breaker, ONE)
    assert changes
    assert breaker.take_changes() == {(ONE, DIGEST)}
