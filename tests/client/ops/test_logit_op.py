"""The choice of an op's implementation, and the table of ops."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from logitport import ops
from logitport.core.edits import Edits, RowEdits
from logitport.ops import LogitOp
from logitport.ops.apply_edits import ApplyEdits
from logitport.ops.logit_op import PLATFORMS, list_ops, platform_of

pytestmark = pytest.mark.usefixtures("restore")


class Traced(LogitOp):
    """Returns the name of the implementation that ran, and counts its choices."""

    def __init__(self) -> None:
        super().__init__()
        self.choices = 0

    def choose(self, platform: str) -> tuple[str, str]:
        self.choices += 1
        return super().choose(platform)

    def forward_native(self, logits: Any) -> str:
        return "native"


class OnCuda(Traced):
    def forward_cuda(self, logits: Any) -> str:
        return "cuda"

    def forward_cpu(self, logits: Any) -> str:
        return "cpu"


def on(device: str) -> Any:
    return SimpleNamespace(device=torch.device(device))


@pytest.mark.parametrize(
    ("device", "of_bare", "of_cuda"),
    [
        ("cpu", "native", "cpu"),
        ("cuda:1", "native", "cuda"),
        ("xpu", "native", "native"),
        ("xla:0", "native", "native"),
        ("privateuseone:0", "native", "native"),
        ("mps", "native", "native"),
    ],
)
def test_the_device_selects_the_implementation(device: str, of_bare: str, of_cuda: str) -> None:
    assert Traced()(on(device)) == of_bare
    assert OnCuda()(on(device)) == of_cuda


def test_hip_falls_back_to_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "hip", "6.2")
    assert platform_of(torch.device("cuda:0")) == "hip"
    assert OnCuda().choose("hip") == ("cuda", "custom_ops is all by default; no implementation for hip")
    assert OnCuda()(on("cuda:0")) == "cuda"
    assert Traced()(on("cuda:0")) == "native"


@pytest.mark.parametrize("platform", PLATFORMS)
def test_an_op_may_implement_any_platform(platform: str) -> None:
    op = type("Anywhere", (Traced,), {f"forward_{platform}": lambda self, logits: platform})()
    assert op.choose(platform)[0] == platform
    assert getattr(op, f"forward_{platform}")(None) == platform


def test_numpy_arrays_are_cpu() -> None:
    assert OnCuda()(np.zeros(1)) == "cpu"


def test_an_implementation_is_chosen_once_for_each_device() -> None:
    op = OnCuda()
    for _ in range(3):
        op(on("cpu"))
        op(on("cuda:0"))
        op(on("cuda:1"))
    assert op.choices == 3


def test_native_runs_for_a_disabled_op() -> None:
    LogitOp.register("traced")(OnCuda)
    ops.configure(["none"])
    assert OnCuda()(on("cpu")) == "native"
    ops.configure(["none", "+traced"])
    assert OnCuda()(on("cpu")) == "cpu"


def test_native_runs_if_a_package_is_missing() -> None:
    class LacksPackage(OnCuda):
        requires: ClassVar = {"cuda": "no_such_package"}

    assert LacksPackage()(on("cuda")) == "native"
    assert LacksPackage().choose("cuda") == ("native", "no_such_package is not installed")
    assert LacksPackage()(on("cpu")) == "cpu"


def test_configuring_repeats_the_choice() -> None:
    LogitOp.register("traced")(OnCuda)
    assert LogitOp.get("traced")(on("cpu")) == "cpu"
    ops.configure(["-traced"])
    assert LogitOp.get("traced")(on("cpu")) == "native"
    assert LogitOp.get("traced") is LogitOp.get("traced")


def test_native_is_compiled_if_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    monkeypatch.setattr(torch, "compile", lambda kernel, **options: calls.append((kernel, options)) or kernel)
    row_edits = RowEdits()
    row_edits.deny([1])
    logits = torch.zeros(2, 3)
    ops.configure(compile_native=True)
    for row in range(2):
        ops.apply_edits(Edits.pack([(row, row_edits)], 3), logits)
    assert [(kernel.__name__, options) for kernel, options in calls] == [("deny", {"dynamic": True})]
    assert logits[:, 1].tolist() == [-torch.inf] * 2
    ops.configure()
    ops.apply_edits(Edits.pack([(0, row_edits)], 3), logits)
    assert len(calls) == 1


def test_a_replacement_obeys_the_configuration() -> None:
    LogitOp.register("traced")(Traced)
    LogitOp.register_oot("traced")(OnCuda)
    assert LogitOp.get("traced")(on("cpu")) == "cpu"
    ops.configure(["-traced"])
    assert LogitOp.get("traced")(on("cpu")) == "native"


def test_the_table_of_ops() -> None:
    ops.configure(["none", "+apply_edits"])
    rows = {(row.op, row.platform): row for row in list_ops()}
    assert {platform for op, platform in rows if op == "apply_edits"} == set(PLATFORMS)
    cpu = rows["apply_edits", "cpu"]
    assert cpu.active
    assert cpu.implementation == "logitport.ops.apply_edits.ApplyEdits.forward_cpu"
    assert cpu.why == "custom_ops has +apply_edits"
    tpu = rows["apply_edits", "tpu"]
    assert tpu.implementation.endswith("forward_native")
    assert tpu.why.startswith("custom_ops has +apply_edits; no implementation for tpu")
    assert all(row.active or row.why.endswith(f"; no {row.platform} device here") for row in rows.values())
    LogitOp.register_oot("apply_edits")(type("Theirs", (ApplyEdits,), {}))
    assert list_ops()[0].implementation.endswith(".Theirs.forward_cpu")
