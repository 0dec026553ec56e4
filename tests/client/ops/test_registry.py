from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pytest
import torch

from logitport import ops
from logitport.core.edits import Edits, RowEdits
from logitport.errors import InvalidArgument
from logitport.ops import LogitOp, PipelineStage
from logitport.ops.apply_edits import ApplyEdits
from logitport.ops.platforms import PLATFORMS, platform_of
from logitport.ops.registry import list_ops

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Traced(LogitOp):
    """Says which implementation ran, and counts how often it chose one."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
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


@pytest.fixture(autouse=True)
def restore(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Leave the registries and the configuration as they were."""
    for family in (LogitOp, PipelineStage):
        for table in ("_ours", "_replacements", "_instances"):
            monkeypatch.setattr(family, table, dict(getattr(family, table)))
    monkeypatch.setattr(torch.version, "hip", None)
    yield
    ops.configure()


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
def test_the_device_decides(device: str, of_bare: str, of_cuda: str) -> None:
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


@pytest.mark.parametrize("platform", PLATFORMS)
def test_methods_that_are_not_overridden_run_what_the_fallback_runs(platform: str) -> None:
    op = OnCuda()
    expected = getattr(op, f"forward_{op.choose(platform)[0]}")(None)
    assert getattr(op, f"forward_{platform}")(None) == expected


def test_numpy_arrays_are_cpu() -> None:
    assert OnCuda()(np.zeros(1)) == "cpu"


def test_chosen_once_for_each_device() -> None:
    op = OnCuda()
    for _ in range(3):
        op(on("cpu"))
        op(on("cuda:0"))
        op(on("cuda:1"))
    assert op.choices == 3


def test_native_where_it_is_disabled_unless_enforced() -> None:
    LogitOp.register("traced")(OnCuda)
    ops.configure(["none"])
    assert OnCuda()(on("cpu")) == "native"
    assert OnCuda(enforce_enable=True)(on("cpu")) == "cpu"
    assert OnCuda(enforce_enable=True).choose("cpu") == ("cpu", "enforced")
    ops.configure(["none", "+traced"])
    assert OnCuda()(on("cpu")) == "cpu"


def test_native_where_a_package_is_missing() -> None:
    class Wanting(OnCuda):
        requires: ClassVar = {"cuda": "no_such_package"}

    assert Wanting()(on("cuda")) == "native"
    assert Wanting().choose("cuda") == ("native", "no_such_package is not installed")
    assert Wanting()(on("cpu")) == "cpu"


def test_configuring_lets_ops_choose_anew() -> None:
    LogitOp.register("traced")(OnCuda)
    assert LogitOp.get("traced")(on("cpu")) == "cpu"
    ops.configure(["-traced"])
    assert LogitOp.get("traced")(on("cpu")) == "native"
    assert LogitOp.get("traced") is LogitOp.get("traced")


def test_native_is_compiled_if_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    monkeypatch.setattr(torch, "compile", lambda kernel, **options: calls.append((kernel, options)) or kernel)
    said = RowEdits()
    said.deny([1])
    logits = torch.zeros(2, 3)
    ops.configure(compile_native=True)
    for row in range(2):
        ops.apply_edits(Edits.pack([(row, said)], 3), logits)
    assert [(kernel.__name__, options) for kernel, options in calls] == [("deny", {"dynamic": True})]
    assert logits[:, 1].tolist() == [-torch.inf] * 2
    ops.configure()
    ops.apply_edits(Edits.pack([(0, said)], 3), logits)
    assert len(calls) == 1


def test_a_package_replaces_an_op_and_the_replacement_can_be_taken_back() -> None:
    seen = []
    before = type(LogitOp.get("apply_edits"))

    @LogitOp.register_oot("apply_edits")
    class Theirs(ApplyEdits):
        def forward_cpu(self, edits: Edits, logits: Any) -> None:
            seen.append(edits)

    edits = Edits.pack([], 3)
    ops.apply_edits(edits, torch.zeros(1, 3))
    assert seen == [edits]
    assert Theirs.name == "apply_edits"
    with pytest.raises(InvalidArgument, match=r"'apply_edits' is replaced already, by .*Theirs"):
        LogitOp.register_oot("apply_edits")(type("Another", (ApplyEdits,), {}))
    LogitOp.unregister_oot("apply_edits")
    assert type(LogitOp.get("apply_edits")) is before is ApplyEdits
    with pytest.raises(InvalidArgument, match="not replaced"):
        LogitOp.unregister_oot("apply_edits")


def test_a_replacement_obeys_the_configuration() -> None:
    LogitOp.register("traced")(Traced)
    LogitOp.register_oot("traced")(OnCuda)
    assert LogitOp.get("traced")(on("cpu")) == "cpu"
    ops.configure(["-traced"])
    assert LogitOp.get("traced")(on("cpu")) == "native"


def test_a_package_replaces_a_pipeline_stage() -> None:
    @PipelineStage.register("stage")
    class Ours(PipelineStage):
        def __call__(self, value: int) -> int:
            return value + 1

    assert PipelineStage.get("stage")(1) == 2

    @PipelineStage.register_oot("stage")
    class Theirs(PipelineStage):
        def __call__(self, value: int) -> int:
            return value + 10

    assert PipelineStage.get("stage")(1) == 11
    PipelineStage.unregister_oot("stage")
    assert PipelineStage.get("stage")(1) == 2
    assert "stage" not in LogitOp.names()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: LogitOp.register("apply_edits")(Traced), "'apply_edits' is registered already"),
        (lambda: LogitOp.get("nothing"), "no LogitOp is named 'nothing'; there are: .*apply_edits"),
        (lambda: LogitOp.register_oot("nothing"), "no LogitOp is named 'nothing'"),
        (lambda: LogitOp.register_oot("apply_edits")(PipelineStage), "derive it from LogitOp"),
        (lambda: LogitOp.unregister_oot("nothing"), "'nothing' is not replaced"),
    ],
)
def test_refused(wrong: Any, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        wrong()


def test_the_table() -> None:
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


PLUGIN = """
from logitport.ops import LogitOp
from logitport.ops.apply_edits import ApplyEdits

@LogitOp.register_oot("apply_edits")
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


def run_beside_plugin(folder: Path, plugin: str) -> subprocess.CompletedProcess[str]:
    (folder / "a_plugin.py").write_text(plugin)
    (folder / "a_plugin-1.dist-info").mkdir()
    (folder / "a_plugin-1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: a_plugin\nVersion: 1\n")
    entry = "[logitport.plugins]\nfast = a_plugin\n"
    (folder / "a_plugin-1.dist-info" / "entry_points.txt").write_text(entry)
    code = f"import sys; sys.path = [*{sys.path!r}, {str(folder)!r}]\n{USER}"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=200)


def test_an_installed_package_replaces_an_op(tmp_path: Path) -> None:
    ran = run_beside_plugin(tmp_path, PLUGIN)
    assert ran.stdout == "theirs\n", ran.stderr


def test_a_package_that_cannot_be_imported_is_named(tmp_path: Path) -> None:
    ran = run_beside_plugin(tmp_path, "import no_such_module")
    assert "LoadFailed: plugin 'fast' (a_plugin) could not be imported" in ran.stderr
