"""A request's chain: its forms, and the processors that requests may name by the operator's choice."""

from __future__ import annotations

import re
from typing import Any

import pytest

from logitport import InvalidArgument
from logitport.integrations.common.chains import VARIABLE, chain_of

BAN = ("disallowed_tokens", {"token_ids": [1]})


@pytest.mark.parametrize(
    ("extra_args", "chain"),
    [
        (None, []),
        ({}, []),
        ({"other": 1}, []),
        ({"logitport": []}, []),
        ({"logitport": [["disallowed_tokens", {"token_ids": [1]}]]}, [BAN]),
        ({"logitport": [BAN]}, [BAN]),
        ({"logitport": '[["disallowed_tokens", {"token_ids": [1]}], ["grammar"]]'}, [BAN, ("grammar", {})]),
    ],
)
def test_both_forms_are_parsed(extra_args: Any, chain: Any) -> None:
    assert list(chain_of(extra_args)) == chain


def test_the_default_is_for_requests_without_the_key() -> None:
    assert chain_of({}, [BAN]) == [BAN]
    assert chain_of({"logitport": []}, [BAN]) == []


@pytest.mark.parametrize("value", ["{", "1", {"a": 1}, 7, ["x"], [["x", 1]], [[1, {}]], [["x", {}, {}]], [[]]])
def test_other_values_are_refused_with_their_place(value: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"logitport.*list of"):
        chain_of({"logitport": value})


def test_a_name_that_is_no_unicode_text_is_refused() -> None:
    """JSON can escape one half of a surrogate pair. It is an error of its request."""
    with pytest.raises(InvalidArgument, match=r"logitport\[0\]"):
        chain_of({"logitport": [["\ud800", {}]]})


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
    with pytest.raises(InvalidArgument, match=r"logitport\[1\] is a shipped processor"):
        chain_of(named("builtin", "shipped"))
    with pytest.raises(InvalidArgument, match=VARIABLE):
        chain_of({"logitport": [["  " + PAYLOAD, {}]]})
    with pytest.raises(InvalidArgument, match=r"logitport\[0\] is a program"):
        chain_of(named("program"))


def test_a_payload_with_code_is_no_program() -> None:
    with pytest.raises(InvalidArgument, match="is a shipped processor"):
        chain_of({"logitport": [['{"program": "0801", "callable": "80"}', {}]]})


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
    assert chain_of({}, [(PAYLOAD, {})]) == [(PAYLOAD, {})], "the operator's default may ship"
