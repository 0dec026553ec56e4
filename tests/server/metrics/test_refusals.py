"""Refusals by error and principal."""

from __future__ import annotations

import pytest

from logitport import AccessDenied, LimitExceeded
from logitport_proto import common_pb2
from logitport_server.metrics.refusals import RefusalMetrics


@pytest.fixture
def refusals() -> RefusalMetrics:
    return RefusalMetrics()


def counts(refusals: RefusalMetrics, name: str) -> dict[tuple[str, str], float]:
    """The values by code and principal, without zeros."""
    return {
        (sample.labels["code"], sample.labels["principal"]): sample.value
        for family in refusals.collect()
        for sample in family.samples
        if sample.name == f"logitport_{name}_refused_total" and sample.value
    }


def test_calls_by_error_and_principal(refusals: RefusalMetrics) -> None:
    refusals.call(AccessDenied("no token", code=AccessDenied.NOT_AUTHENTICATED))
    refusals.call(LimitExceeded("too many"), "alice")
    refusals.call(LimitExceeded("too many"), "alice")
    assert counts(refusals, "calls") == {("NOT_AUTHENTICATED", ""): 1, ("LIMIT_EXCEEDED", "alice"): 2}
    assert counts(refusals, "requests") == {}


def test_requests_by_error_and_principal(refusals: RefusalMetrics) -> None:
    argument, payload = common_pb2.ERROR_CODE_INVALID_ARGUMENT, common_pb2.ERROR_CODE_INVALID_PAYLOAD
    refusals.add_report("alice", {argument: 1, payload: 2})
    refusals.add_report("alice", {argument: 1})
    refusals.add_report("bob", {argument: 1})
    assert counts(refusals, "requests") == {
        ("INVALID_ARGUMENT", "alice"): 2,
        ("INVALID_PAYLOAD", "alice"): 2,
        ("INVALID_ARGUMENT", "bob"): 1,
    }


def test_each_code_has_a_value_before_the_first_refusal(refusals: RefusalMetrics) -> None:
    """Prometheus computes no rate for a counter that appears with its first event."""
    for family in refusals.collect():
        assert len(family.samples) == len(common_pb2.ErrorCode.keys())
        assert {sample.value for sample in family.samples} == {0}


def test_principals_of_any_number_create_a_bounded_number_of_series(refusals: RefusalMetrics) -> None:
    """Names of principals may come from certificates."""
    for number in range(3000):
        refusals.call(LimitExceeded("too many"), f"certificate:{number}")
    found = counts(refusals, "calls")
    assert len(found) == 257
    assert found["LIMIT_EXCEEDED", "(others)"] == 3000 - 256
