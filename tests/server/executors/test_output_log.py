"""The output of processors that the server keeps."""

from __future__ import annotations

from typing import cast

import pytest

from logitport_server.executors import output_log
from logitport_server.executors.output_log import OutputLog
from logitport_session.processor_sources.source import Source
from logitport_session.trust.principals import Party, TrustDomain


def domain(principal: str, tenant: str = "") -> TrustDomain:
    return TrustDomain("author", Party(principal, tenant))


def source(key: str = "digest") -> Source:
    return Source(key)


def texts(log: OutputLog, principal: str, key: str = "digest") -> list[str]:
    kept = log.read(principal, key)
    return [] if kept is None else [printed.text for printed in kept[1]]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(output_log.time, "monotonic", lambda: now[0])
    return now


def test_output_is_kept_by_calling_principal() -> None:
    log = OutputLog()
    log.record(domain("alice"), source(), "of alice")
    log.record(domain("bob"), source(), "of bob")
    log.record(domain("alice", "tenant"), source(), "of a tenant of alice")
    log.record(None, source(), "of no domain")
    log.record(domain("alice"), source(), "")

    assert texts(log, "alice") == ["of alice", "of a tenant of alice"]
    assert texts(log, "bob") == ["of bob"]
    assert log.read("author", "digest") is None
    assert log.read("alice", "another") is None


def test_text_of_a_worker_is_cut() -> None:
    log = OutputLog()
    log.record(domain("alice"), source(), "x" * 10_000)

    assert texts(log, "alice") == ["x" * output_log.MAX_TEXT_LENGTH]


def test_rate_is_limited(clock: list[float]) -> None:
    log, text = OutputLog(), "x" * 4096
    for _ in range(20):
        log.record(domain("alice"), source(), text)
    assert cast("tuple[str, list[object], int]", log.read("alice", "digest"))[2] == 4 * 4096
    log.record(domain("bob"), source(), text)
    log.record(domain("alice"), source("another"), text)
    assert texts(log, "bob") == texts(log, "alice", "another") == [text]

    clock[0] += 1.0
    for _ in range(5):
        log.record(domain("alice"), source(), "y" * 4096)
    assert texts(log, "alice").count("y" * 4096) == 4


def test_last_output_is_kept(clock: list[float]) -> None:
    log = OutputLog()
    for number in range(1000):
        clock[0] += 1.0
        log.record(domain("alice"), source(), f"{number:1000}")

    kept = log.read("alice", "digest")
    assert kept is not None
    assert [int(printed.text) for printed in kept[1]] == list(range(935, 1000))
    assert kept[2] == 935_000


def test_number_of_calls_is_limited(clock: list[float]) -> None:
    log = OutputLog()
    for number in range(2000):
        log.record(domain("alice"), source(), str(number))

    assert texts(log, "alice") == [str(number) for number in range(976, 2000)]


def test_number_of_processors_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_log, "_MAX_OF_PRINCIPAL", 4)
    monkeypatch.setattr(output_log, "_MAX_PROCESSORS", 6)
    log = OutputLog()
    log.record(domain("bob"), source("his"), "x")
    for number in range(10):
        log.record(domain("mallory"), source(str(number)), "x")
    assert [number for number in range(10) if log.read("mallory", str(number))] == [6, 7, 8, 9]
    assert log.read("bob", "his")

    for name in ("carol", "dave"):
        log.record(domain(name), source("theirs"), "x")
    assert [number for number in range(10) if log.read("mallory", str(number))] == [7, 8, 9]
    assert all(log.read(*key) for key in (("bob", "his"), ("carol", "theirs"), ("dave", "theirs")))
