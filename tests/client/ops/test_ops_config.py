from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from logitport import ops
from logitport.errors import InvalidArgument
from logitport.ops import LogitOp, OpsConfig, logit_op

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.parametrize(
    ("custom_ops", "compile_native", "enabled"),
    [
        ((), False, True),
        ((), True, False),
        (("all",), True, True),
        (("none",), False, False),
        (("none", "+apply_edits"), False, True),
        (("-apply_edits",), False, False),
        (("+apply_edits",), True, True),
        (("all", "-another"), False, True),
        (("+another", "none"), False, False),
    ],
)
def test_enabled_ops(custom_ops: tuple[str, ...], compile_native: bool, enabled: bool) -> None:
    assert OpsConfig(custom_ops, compile_native).decide("apply_edits")[0] is enabled


@pytest.mark.parametrize(
    ("custom_ops", "reason"),
    [
        (("none", "+apply_edits"), "custom_ops has +apply_edits"),
        (("none",), "custom_ops has none"),
        ((), "custom_ops is all by default"),
    ],
)
def test_the_reason_for_a_decision(custom_ops: tuple[str, ...], reason: str) -> None:
    assert OpsConfig(custom_ops).decide("apply_edits")[1] == reason


@pytest.mark.parametrize(
    ("custom_ops", "message"),
    [
        (("all", "none"), "'all' or 'none' more than once"),
        (("all", "all"), "'all' or 'none' more than once"),
        (("all", "+apply_edits", "-apply_edits"), "both enables and disables 'apply_edits'"),
        (("apply_edits",), "'apply_edits' is none of"),
        (("+",), r"'\+' is none of"),
        (("",), "'' is none of"),
    ],
)
def test_invalid_configurations_are_refused(custom_ops: tuple[str, ...], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        OpsConfig(custom_ops)


def test_an_unknown_op_is_refused_and_nothing_changes() -> None:
    before = LogitOp.get("apply_edits")
    with pytest.raises(InvalidArgument, match=r"\['aply_edits'\]; the ops are: .*apply_edits"):
        ops.configure(["all", "+aply_edits"])
    assert LogitOp.get("apply_edits") is before


@pytest.mark.usefixtures("restore")
@pytest.mark.parametrize(
    ("value", "runs"),
    [
        ("", "cpu"),
        ("none", "native"),
        ("none,+apply_edits", "cpu"),
        ("none, +apply_edits", "cpu"),
        ("-apply_edits", "native"),
    ],
)
def test_the_variable(value: str, runs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGITPORT_CUSTOM_OPS", value)
    ops.configure()
    assert LogitOp.get("apply_edits").choose("cpu")[0] == runs
    ops.configure([])
    assert LogitOp.get("apply_edits").choose("cpu")[0] == "cpu", "an argument overrules the variable"


@pytest.mark.usefixtures("restore")
def test_the_variable_is_read_at_the_first_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logit_op, "_config", None)
    LogitOp.get.cache_clear()
    monkeypatch.setenv("LOGITPORT_CUSTOM_OPS", "none")
    assert LogitOp.get("apply_edits").choose("cpu") == ("native", "custom_ops has none")


@pytest.mark.usefixtures("restore")
def test_a_check_of_the_variable_changes_no_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    ops.configure(["none"])
    monkeypatch.setenv("LOGITPORT_CUSTOM_OPS", "all")
    ops.check_variable()
    assert LogitOp.get("apply_edits").choose("cpu") == ("native", "custom_ops has none")


@pytest.mark.usefixtures("restore")
def test_a_check_of_the_variable_applies_it_if_nothing_is_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logit_op, "_config", None)
    LogitOp.get.cache_clear()
    monkeypatch.setenv("LOGITPORT_CUSTOM_OPS", "none")
    ops.check_variable()
    monkeypatch.delenv("LOGITPORT_CUSTOM_OPS")
    assert LogitOp.get("apply_edits").choose("cpu") == ("native", "custom_ops has none")


@pytest.mark.parametrize("read", [ops.configure, ops.check_variable])
@pytest.mark.parametrize("value", ["all,none", "+aply_edits", "none,,", "apply_edits"])
def test_an_invalid_variable_is_refused(value: str, read: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGITPORT_CUSTOM_OPS", value)
    before = LogitOp.get("apply_edits")
    with pytest.raises(InvalidArgument, match="LOGITPORT_CUSTOM_OPS: custom_ops "):
        read()
    assert LogitOp.get("apply_edits") is before
