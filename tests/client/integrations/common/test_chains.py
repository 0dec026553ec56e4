"""Chains in an engine's extra arguments, and the environment variables of hooks."""

from __future__ import annotations

from typing import Any

import pytest

from logitport import InvalidArgument
from logitport.integrations.common import environment
from logitport.integrations.common.chains import chain_of

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


def test_the_environment_names_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGITPORT_TARGET", "127.0.0.1:1")
    with environment.client() as client:
        assert client.target == "127.0.0.1:1"


def test_misspelled_variables_are_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    environment.warn_about_misspelled.cache_clear()
    monkeypatch.setenv("LOGITPORT_TARGET", "127.0.0.1:1")
    monkeypatch.setenv("LOGITPORT_DEFAULT_PROCESORS", "[]")
    monkeypatch.setenv("LOGITPORT_ENABLE_CUSTOM_LOGIT_PROCESSOR", "true")  # the server's
    for _ in range(2):
        environment.client().close()
    (warning,) = caplog.messages
    assert warning.startswith("LOGITPORT_DEFAULT_PROCESORS is set in the environment, and nothing here reads it; set ")
    assert "LOGITPORT_DEFAULT_PROCESSORS" in warning


def test_tls_files_of_the_environment_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGITPORT_TARGET", "127.0.0.1:1")
    monkeypatch.setenv("LOGITPORT_TLS", "no such file")
    with pytest.raises(InvalidArgument, match="no such file"):
        environment.client()


def test_the_environment_may_hold_a_default(monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(environment.default_chain()) == []
    monkeypatch.setenv("LOGITPORT_DEFAULT_PROCESSORS", '[["disallowed_tokens", {"token_ids": [1]}]]')
    assert list(environment.default_chain()) == [BAN]
    monkeypatch.setenv("LOGITPORT_DEFAULT_PROCESSORS", "nonsense")
    with pytest.raises(InvalidArgument, match="LOGITPORT_DEFAULT_PROCESSORS"):
        environment.default_chain()
