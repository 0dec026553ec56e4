"""Environment variables that nothing reads, and the proposed names."""

from __future__ import annotations

import ast
import difflib
from pathlib import Path

import pytest

import logitport
import logitport_recording
from logitport.system.variables import OF_THE_SDK, PREFIX, Unread, nearest, unread

KNOWN = {*OF_THE_SDK, "LOGITPORT_LISTEN", "LOGITPORT_ENABLE_CUSTOM_LOGIT_PROCESSOR"}


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("LOGITPORT_TARGT", "LOGITPORT_TARGET"),
        ("LOGITPORT_LISTEN_", "LOGITPORT_LISTEN"),
        ("LOGITPORT_ENABLE_CUSTOM_LOGITS_PROCESSOR", "LOGITPORT_ENABLE_CUSTOM_LOGIT_PROCESSOR"),
        ("LOGITPORT_TLSS", "LOGITPORT_TLS"),
        ("LOGITPORT_DEFAULT_PROCESSOR", "LOGITPORT_DEFAULT_PROCESSORS"),
        ("LOGITPORT_XYZZY", ""),
        ("LOGITPORT_PORT", "LOGITPORT_REPORT"),
        ("LOGITPORT_", ""),
    ],
)
def test_a_name_that_nothing_reads(name: str, nearest: str) -> None:
    assert unread(KNOWN, {name: "8000"}) == [Unread(name, nearest)]


def test_a_long_name_is_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(difflib, "get_close_matches", lambda *_: pytest.fail("difflib indexes each character"))
    assert nearest("x" * 1_000_000, ["logitport"]) == ""
    assert nearest("x", []) == ""


def test_known_variables_and_other_prefixes_are_not_reported() -> None:
    others = ["PATH", "LOGITPORT", "logitport_target", "VLLM_TARGET", "MY_LOGITPORT_TARGET"]
    assert unread(KNOWN, dict.fromkeys([*KNOWN, *others], "x")) == []


def test_variables_of_kubernetes_for_a_service_named_logitport_are_not_reported() -> None:
    address = "tcp://10.0.0.11:50051"
    assert not unread(
        KNOWN,
        {
            "LOGITPORT_SERVICE_HOST": "10.0.0.11",
            "LOGITPORT_SERVICE_PORT": "50051",
            "LOGITPORT_SERVICE_PORT_GRPC": "50051",
            "LOGITPORT_PORT": address,
            "LOGITPORT_PORT_50051_TCP": address,
            "LOGITPORT_PORT_50051_TCP_PROTO": "tcp",
            "LOGITPORT_PORT_50051_TCP_PORT": "50051",
            "LOGITPORT_PORT_50051_TCP_ADDR": "10.0.0.11",
            "LOGITPORT_METRICS_SERVICE_HOST": "10.0.0.12",
            "LOGITPORT_METRICS_PORT": address,
        },
    )


def test_every_variable_that_the_sdk_names_is_known() -> None:
    """Every string in the code that has the form of a variable's name is in `OF_THE_SDK`."""
    sources = [Path(package.__file__).parent for package in (logitport, logitport_recording)]
    named = {
        node.value
        for path in (path for source in sources for path in source.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        if node.value.startswith(PREFIX) and node.value.isidentifier() and node.value != PREFIX
    }
    assert named == OF_THE_SDK
