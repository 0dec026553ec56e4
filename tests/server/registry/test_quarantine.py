"""A circuit breaker for processors."""

from __future__ import annotations

import pytest

from logitport import ProcessorQuarantined
from logitport_server.principals import TrustDomain
from logitport_server.registry import quarantine
from logitport_server.registry.quarantine import Quarantine

ONE, OTHER = TrustDomain("one"), TrustDomain("engine", "other")
DIGEST = "0123456789abcdef" * 4


def is_held(held: Quarantine, domain: TrustDomain) -> bool:
    try:
        held.check(domain, DIGEST, "a name")
    except ProcessorQuarantined:
        return True
    return False


def test_so_many_in_a_row() -> None:
    held = Quarantine(3)
    for at in range(3):
        assert not is_held(held, ONE)
        held.record_failure(ONE, DIGEST, f"failure {at}")
    assert is_held(held, ONE)
    assert not is_held(held, OTHER)
    assert len(held) == 1
    assert held.reason(DIGEST) == held.reason(DIGEST, "one") == "3 failures in a row, the last one: failure 2"
    assert held.reason(DIGEST, "engine") == ""
    assert held.reason("another") == ""


def test_a_call_that_goes_well_ends_the_series() -> None:
    held = Quarantine(2)
    for _ in range(4):
        held.record_failure(ONE, DIGEST, "")
        held.record_success(ONE, DIGEST)
    assert not is_held(held, ONE)


def test_what_is_long_ago_is_no_series(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(quarantine.time, "monotonic", lambda: now[0])
    held = Quarantine(2)
    for _ in range(4):
        held.record_failure(ONE, DIGEST, "")
        now[0] += 3600
    assert not is_held(held, ONE)


def test_only_a_release_lifts_it() -> None:
    held = Quarantine(1)
    for domain in (ONE, OTHER):
        held.record_failure(domain, DIGEST, "")
        held.record_success(domain, DIGEST)
        assert is_held(held, domain)
    assert held.lift(DIGEST)
    assert not is_held(held, ONE)
    assert not is_held(held, OTHER)
    assert not held.lift(DIGEST)


def test_ever_new_processors_do_not_pile_up() -> None:
    held = Quarantine(1)
    for number in range(3000):
        held.record_failure(ONE, f"{number}", "")
    assert len(held) == 1024
    with pytest.raises(ProcessorQuarantined):
        held.check(ONE, "2999", "a name")
    held.check(ONE, "0", "a name")


@pytest.mark.parametrize("domain", [ONE, OTHER])
def test_the_message_says_what_to_do(domain: TrustDomain) -> None:
    held = Quarantine(1)
    held.record_failure(domain, DIGEST, "its worker ended with status 3")
    with pytest.raises(
        ProcessorQuarantined, match=r"status 3; fix it, or have an operator lift the quarantine"
    ) as raised:
        held.check(domain, DIGEST, "Ban (sha256:0123)")
    assert raised.value.processor == "Ban (sha256:0123)"
    assert raised.value.message.startswith("processor Ban (sha256:0123) is quarantined: ")
    assert f"logitport unquarantine TARGET {DIGEST}" in raised.value.message
