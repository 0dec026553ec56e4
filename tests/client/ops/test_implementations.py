"""The choice of the implementation that applies edits, and its replacement by installed packages."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pytest
import torch

from logitport import ops
from logitport.core.edits import Edits
from logitport.errors import InvalidArgument
from logitport.ops import ApplyEdits, implementations
from logitport.ops.apply_edits import platform_of
from tests.plugin_process import run_beside_plugin

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("restore")

NO_EDITS = Edits.pack([], 3)


class Traced(ApplyEdits):
    """Notes the name of the implementation that ran, and counts its choices."""

    def __init__(self, **options: Any) -> None:
        self.choices = 0
        self.ran: list[str] = []
        super().__init__(**options)
        self.choices = 0

    def choose(self, platform: str) -> tuple[str, str]:
        self.choices += 1
        return super().choose(platform)

    def forward_native(self, edits: Edits, logits: Any) -> None:
        self.ran.append("native")

    def forward_cpu(self, edits: Edits, logits: Any) -> None:
        self.ran.append("cpu")

    def forward_cuda(self, edits: Edits, logits: Any) -> None:
        self.ran.append("cuda")

    def run_on(self, device: str) -> str:
        self(NO_EDITS, SimpleNamespace(device=torch.device(device)))
        return self.ran[-1]


@pytest.fixture(autouse=True)
def has_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Traced, "requires", {})


@pytest.mark.parametrize(
    ("device", "runs"),
    [
        ("cpu", "cpu"),
        ("cuda:1", "cuda"),
        ("xpu", "native"),
        ("xla:0", "native"),
        ("privateuseone:0", "native"),
        ("mps", "native"),
    ],
)
def test_the_device_selects_the_implementation(device: str, runs: str) -> None:
    assert Traced().run_on(device) == runs
    op = Traced()
    op(NO_EDITS, np.zeros((1, 3), np.float32))
    assert op.ran == ["cpu"], "numpy arrays"


def test_hip_falls_back_to_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "hip", "6.2")
    assert platform_of(torch.device("cuda:0")) == "hip"
    assert Traced().choose("hip") == ("cuda", "no implementation for hip")
    assert Traced().run_on("cuda:0") == "cuda"


def test_native_runs_without_kernels_or_if_a_package_is_missing() -> None:
    class LacksPackage(Traced):
        requires: ClassVar = {"cuda": "no_such_package"}

    assert Traced(with_kernels=False).run_on("cpu") == LacksPackage().run_on("cuda") == "native"
    assert Traced(with_kernels=False).choose("cpu") == ("native", "custom_ops is none")
    assert LacksPackage().choose("cuda") == ("native", "no_such_package is not installed")
    assert LacksPackage().run_on("cpu") == "cpu"


def test_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(implementations, "_platforms_here", lambda: {"tpu", "cpu"})
    name = "logitport.ops.apply_edits.ApplyEdits"
    assert ops.list_implementations() == [
        ("cpu", f"{name}.forward_cpu", "custom_ops is all"),
        ("tpu", f"{name}.forward_native", "no implementation for tpu"),
    ]
    ops.register_oot(type("Theirs", (ApplyEdits,), {}))
    assert ops.list_implementations()[0].method.endswith(".Theirs.forward_cpu")


# Configuration


def chosen() -> tuple[str, str]:
    return ops.current().choose("cpu")


@pytest.mark.parametrize(("value", "runs"), [("", "cpu"), ("all", "cpu"), ("none", "native")])
def test_the_variable(value: str, runs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGITPORT_CUSTOM_OPS", value)
    ops.configure()
    assert chosen()[0] == runs
    ops.configure("all")
    assert chosen()[0] == "cpu", "an argument overrules the variable"


def test_the_variable_is_read_at_the_first_call_or_check_if_nothing_is_configured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LOGITPORT_CUSTOM_OPS", "none")
    monkeypatch.setattr(implementations, "_custom_ops", None)
    ops.current.cache_clear()
    assert chosen() == ("native", "custom_ops is none")
    monkeypatch.setattr(implementations, "_custom_ops", None)
    ops.current.cache_clear()
    ops.check_variable()
    monkeypatch.setenv("LOGITPORT_CUSTOM_OPS", "all")
    assert chosen() == ("native", "custom_ops is none")
    ops.check_variable()
    assert chosen() == ("native", "custom_ops is none"), "a check changes no configuration"


@pytest.mark.parametrize("read", [ops.configure, ops.check_variable])
@pytest.mark.parametrize("value", ["all,none", "apply_edits", "None"])
def test_an_invalid_variable_is_refused(value: str, read: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGITPORT_CUSTOM_OPS", value)
    before = ops.current()
    with pytest.raises(InvalidArgument, match=f"LOGITPORT_CUSTOM_OPS is '{value}'"):
        read()
    assert ops.current() is before


# Replacement


def test_a_package_replaces_the_class() -> None:
    @ops.register_oot
    class Theirs(Traced):
        pass

    ops.apply_edits(NO_EDITS, torch.zeros(1, 3))
    current = ops.current()
    assert isinstance(current, Theirs)
    assert current.ran == ["cpu"]
    with pytest.raises(InvalidArgument, match=r"ApplyEdits is replaced already, by .*Theirs"):
        ops.register_oot(type("Another", (ApplyEdits,), {}))
    ops.configure("none")
    assert chosen()[0] == "native", "a replacement obeys the configuration"


def test_another_class_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="derive it from ApplyEdits"):
        ops.register_oot(object)  # type: ignore[type-var]


PLUGIN = """
from logitport.ops import ApplyEdits, register_oot

@register_oot
class Fast(ApplyEdits):
    def forward_cpu(self, edits, logits):
        print("theirs")
"""

USER = """
import sys
import numpy as np
import logitport.ops
assert not {"torch", "triton", "a_plugin"} & set(sys.modules), "imported before it was needed"
from logitport.core.edits import Edits
logitport.ops.apply_edits(Edits.pack([], 1), np.zeros((1, 1), np.float32))
assert not {"torch", "triton"} & set(sys.modules), "imported for a numpy array"
"""


def test_an_installed_package_replaces_the_class(tmp_path: Path) -> None:
    ran = run_beside_plugin(tmp_path, PLUGIN, USER)
    assert ran.stdout == "theirs\n", ran.stderr


def test_a_package_that_cannot_be_imported_is_named(tmp_path: Path) -> None:
    ran = run_beside_plugin(tmp_path, "import no_such_module", USER)
    assert "PayloadError: plugin 'fast' (a_plugin) could not be imported" in ran.stderr
