"""Registration by name, replacement by installed packages, and refusals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from logitport import ops
from logitport.core.edits import Edits
from logitport.errors import InvalidArgument
from logitport.ops import LogitOp
from logitport.ops.apply_edits import ApplyEdits
from tests.plugin_process import run_beside_plugin

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("restore")


def test_a_package_replaces_an_op() -> None:
    seen = []

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


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: LogitOp.register("apply_edits")(ApplyEdits), "'apply_edits' is registered already"),
        (lambda: LogitOp.get("nothing"), "no LogitOp is named 'nothing'; there are: .*apply_edits"),
        (lambda: LogitOp.register_oot("nothing"), "no LogitOp is named 'nothing'"),
        (lambda: LogitOp.register_oot("apply_edits")(object), "derive it from LogitOp"),
    ],
)
def test_invalid_registrations_are_refused(wrong: Any, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        wrong()


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


NEW_OP = """
from logitport.ops import LogitOp

@LogitOp.register("theirs")
class Theirs(LogitOp):
    def forward_native(self, logits):
        return logits
"""

OPERATOR = """
from logitport import ops
ops.configure(["none", "+theirs"])
print(sorted({row.op for row in ops.list_ops()}))
"""


def test_an_installed_package_replaces_an_op(tmp_path: Path) -> None:
    ran = run_beside_plugin(tmp_path, PLUGIN, USER)
    assert ran.stdout == "theirs\n", ran.stderr


def test_a_package_that_cannot_be_imported_is_named(tmp_path: Path) -> None:
    ran = run_beside_plugin(tmp_path, "import no_such_module", USER)
    assert "PayloadError: plugin 'fast' (a_plugin) could not be imported" in ran.stderr


@pytest.mark.slow
def test_an_op_of_a_plugin_can_be_configured_and_is_listed(tmp_path: Path) -> None:
    ran = run_beside_plugin(tmp_path, NEW_OP, OPERATOR)
    assert ran.stdout == "['apply_edits', 'theirs']\n", ran.stderr
