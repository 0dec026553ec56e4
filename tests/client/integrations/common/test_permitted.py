"""Processors that requests may name: built-ins and registered processors, and shipped ones by the operator's choice."""

from __future__ import annotations

import re
from typing import Any

import pytest

from logitport import InvalidArgument
from logitport.integrations.common import environment
from logitport.integrations.common.chains import VARIABLE, chain_of, permitted_kinds

PAYLOAD = '{"callable": "80"}'
NAMES = {
    "builtin": "disallowed_tokens",
    "name": "team/no-rhymes:v2",
    "digest": "0" * 64,
    "program": '{"program": "0801"}',
    "shipped": PAYLOAD,
}


def named(*kinds: str) -> dict[str, Any]:
    return {"logitport": [[NAMES[kind], {}] for kind in kinds]}


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)


def test_by_default_requests_ship_nothing() -> None:
    assert len(chain_of(named("builtin", "name", "digest"))) == 3
    with pytest.raises(InvalidArgument, match=r"logitport\[1\] is a shipped processor.*register it.*'shipped' to LOGI"):
        chain_of(named("builtin", "shipped"))
    with pytest.raises(InvalidArgument, match=VARIABLE):
        chain_of({"logitport": [["  " + PAYLOAD, {}]]})
    with pytest.raises(InvalidArgument, match=r"logitport\[0\] is a program.*register it.*'program' to LOGI"):
        chain_of(named("program"))


def test_a_payload_with_code_is_no_program() -> None:
    with pytest.raises(InvalidArgument, match="is a shipped processor"):
        chain_of({"logitport": [['{"program": "0801", "callable": "80"}', {}]]})


def test_the_operators_default_chain_may_ship() -> None:
    default = [(PAYLOAD, {})]
    assert chain_of({}, default) == default


@pytest.mark.parametrize(
    ("value", "accepted"),
    [
        ("builtin,registered,shipped", {"builtin", "name", "digest", "shipped"}),
        ("builtin", {"builtin"}),
        ("builtin,program", {"builtin", "program"}),
        (" registered , shipped ", {"name", "digest", "shipped"}),
        ("none", set()),
        ("", {"builtin", "name", "digest"}),
    ],
)
def test_the_operator_chooses(value: str, accepted: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, value)
    for kind, name in NAMES.items():
        if kind in accepted:
            assert chain_of(named(kind)) == [(name, {})]
        else:
            with pytest.raises(InvalidArgument, match=re.escape(VARIABLE)):
                chain_of(named(kind))
    assert chain_of({"logitport": []}) == []


@pytest.mark.parametrize("value", ["all", "builtin,", "none,builtin", "Builtin"])
def test_another_word_is_refused_at_start(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, value)
    monkeypatch.setenv("LOGITPORT_TARGET", "127.0.0.1:1")
    with pytest.raises(InvalidArgument, match="builtin, registered, program and shipped"):
        environment.client()


def test_the_kinds_are_read_at_each_request(monkeypatch: pytest.MonkeyPatch) -> None:
    assert permitted_kinds() == {"builtin", "registered"}
    monkeypatch.setenv(VARIABLE, "shipped")
    assert permitted_kinds() == {"shipped"}
