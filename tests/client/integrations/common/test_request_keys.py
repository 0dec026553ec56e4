"""Keys next to "logitport": a misspelt one is logged once, and refused if the operator lists the permitted keys."""

from __future__ import annotations

import pytest

from logitport import InvalidArgument
from logitport.integrations.common import request_keys
from logitport.integrations.common.request_keys import VARIABLE, check_keys, permitted_keys


@pytest.fixture(autouse=True)
def new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(request_keys, "_warned", set())


@pytest.mark.parametrize("key", ["logitprot", "logit_port", "logitports", "Logitport", "LOGITPORT", "logit-port"])
def test_a_near_key_is_logged_once(key: str, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(3):
        check_keys({key: [], "temperature": 1}, "extra_args")
    (message,) = caplog.messages
    assert repr(key) in message
    assert "'logitport'" in message
    assert "extra_args" in message
    assert VARIABLE in message


def test_other_keys_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    others = ("logitport", "logitport_tenant", "logit_bias", "logprobs", "thinking_budget", "logits_processors", "port")
    check_keys(dict.fromkeys(others), "extra_args")
    check_keys(None, "extra_args")
    check_keys({"logitprot": 1}, "extra_args", engine_keys=["logitprot"])
    assert not caplog.messages


def test_clients_cannot_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    for number in range(200):
        check_keys({f"logitport{number}": 1}, "extra_args")
    check_keys({"logitport" + "\n" * 5: 1}, "extra_args")
    assert len(caplog.messages) == len(request_keys._warned) == 64
    assert not any("\n" in message for message in caplog.messages)


@pytest.mark.parametrize(
    ("value", "permitted"),
    [("", None), ("any", None), ("none", set()), ("a", {"a"}), (" a , b ", {"a", "b"})],
)
def test_the_operator_lists_keys(value: str, permitted: set[str] | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, value)
    assert permitted_keys() == permitted


@pytest.mark.parametrize("value", ["a,,b", ",", "any,a", "a, none"])
def test_other_lists_are_refused(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, value)
    with pytest.raises(InvalidArgument, match=VARIABLE):
        permitted_keys()


@pytest.mark.parametrize(
    ("key", "advice"),
    [
        ("logitprot", "write 'logitport' if"),
        ("Mine_", "write 'mine' if"),
        ("transfer_param", "write 'transfer_params' if"),
        ("anything", "leave it out"),
        ("x" * 1000, "leave it out"),
    ],
)
def test_a_key_that_is_not_listed_is_refused(
    key: str, advice: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(VARIABLE, "mine")
    fine = {"logitport": [], "logitport_tenant": "", "mine": 1, "transfer_params": 2}
    check_keys(fine, "extra_args", engine_keys=["transfer_params"])
    with pytest.raises(InvalidArgument, match=advice) as refused:
        check_keys(fine | {key: 3}, "extra_args", engine_keys=["transfer_params"])
    assert str(refused.value).startswith(f"extra_args has the key '{key[:70]}")
    assert VARIABLE in str(refused.value)
    assert len(str(refused.value)) < 300
    assert not caplog.messages
