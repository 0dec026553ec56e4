"""The quarantine of processors."""

from __future__ import annotations

import pytest

from logitport import ProcessorQuarantined
from logitport_server.principals import Party, TrustDomain
from logitport_server.registry import quarantine
from logitport_server.registry.quarantine import Quarantine

ONE, OTHER = TrustDomain("one", Party("engine")), TrustDomain("engine", Party("engine", "other"))
DIGEST = "0123456789abcdef" * 4


def is_quarantined(breaker: Quarantine, domain: TrustDomain) -> bool:
    try:
        breaker.check(domain, DIGEST, "a name")
    except ProcessorQuarantined:
        return True
    return False


def test_consecutive_failures() -> None:
    breaker = Quarantine(3)
    for at in range(3):
        assert not is_quarantined(breaker, ONE)
        breaker.record_failure(ONE, DIGEST, f"failure {at}")
    assert is_quarantined(breaker, ONE)
    assert not is_quarantined(breaker, OTHER)
    assert len(breaker) == 1
    assert breaker.reason(DIGEST) == breaker.reason(DIGEST, "one") == "3 failures in a row, the last one: failure 2"
    assert breaker.reason(DIGEST, "engine") == ""
    assert breaker.reason("another") == ""


def test_a_successful_call_resets_the_count() -> None:
    breaker = Quarantine(2)
    for _ in range(4):
        breaker.record_failure(ONE, DIGEST, "")
        breaker.record_success(ONE, DIGEST)
    assert not is_quarantined(breaker, ONE)


def test_old_failures_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(quarantine.time, "monotonic", lambda: now[0])
    breaker = Quarantine(2)
    for _ in range(4):
        breaker.record_failure(ONE, DIGEST, "")
        now[0] += 3600
    assert not is_quarantined(breaker, ONE)


def test_only_lifting_ends_it() -> None:
    breaker = Quarantine(1)
    for domain in (ONE, OTHER):
        breaker.record_failure(domain, DIGEST, "")
        breaker.record_success(domain, DIGEST)
        assert is_quarantined(breaker, domain)
    assert breaker.lift(DIGEST)
    assert not is_quarantined(breaker, ONE)
    assert not is_quarantined(breaker, OTHER)
    assert not breaker.lift(DIGEST)


def test_records_are_bounded() -> None:
    breaker = Quarantine(1)
    for number in range(3000):
        breaker.record_failure(ONE, f"{number}", "")
    assert len(breaker) == 1024
    with pytest.raises(ProcessorQuarantined):
        breaker.check(ONE, "2999", "a name")
    breaker.check(ONE, "0", "a name")


@pytest.mark.parametrize("domain", [ONE, OTHER])
def test_the_message_names_the_remedy(domain: TrustDomain) -> None:
    breaker = Quarantine(1)
    breaker.record_failure(domain, DIGEST, "its worker ended with status 3")
    with pytest.raises(
        ProcessorQuarantined, match=r"status 3; fix it, or have an operator lift the quarantine"
    ) as raised:
        breaker.check(domain, DIGEST, "Ban (sha256:0123)")
    assert raised.value.processor == "Ban (sha256:0123)"
    assert raised.value.message.startswith("processor Ban (sha256:0123) is quarantined: ")
    assert f"logitport unquarantine TARGET {DIGEST}" in raised.value.message
