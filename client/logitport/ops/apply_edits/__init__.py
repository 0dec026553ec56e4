"""Apply edits to logits, in place.

Within a row, a FORCE is the first edit, and the edits after it commute: -inf plus a finite value is -inf.
An implementation may therefore apply all edits of one kind at once, in this order: FORCE, BIAS, ALLOW, BITMASK, DENY.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from logitport.compiled import core
from logitport.core import tensors
from logitport.ops.apply_edits import cpu
from logitport.ops.logit_op import LogitOp

if TYPE_CHECKING:
    from logitport.core.edits import Edits


def apply_edits(edits: Edits, logits: Any) -> None:
    """Apply edits to logits, in place, with the implementation of the platform that holds the logits.

    Rows without an edit, and values that an edit keeps, stay bit-identical. All BIAS values of one id are summed, added
    in float32, and rounded once to the logits' dtype. Every platform therefore gives the same bits.

    Args:
        edits: edits that `Edits.check` has accepted for these logits; they are not checked again.
        logits: float32, float16 or bfloat16 [rows, vocab_size], a torch tensor on any device or a numpy array, with
            any strides. Ids past the words of a BITMASK are denied.

    Raises:
        InvalidArgument: another dtype, a read-only array, or a gradient is required (`tensors.check_gradient`).
    """
    tensors.check_gradient(logits)
    LogitOp.get("apply_edits")(edits, logits)


def uses_core() -> bool:
    """Whether the compiled core applies edits to logits in the memory of the CPU, if it can: see `cpu`."""
    op = LogitOp.get("apply_edits")
    return isinstance(op, ApplyEdits) and op.uses_core


@LogitOp.register("apply_edits")
class ApplyEdits(LogitOp):
    """The implementations of `apply_edits`."""

    requires: ClassVar = {"cuda": "triton"}

    def __init__(self) -> None:
        super().__init__()
        is_replaced = type(self).forward_cpu is not ApplyEdits.forward_cpu
        self.uses_core = core is not None and not is_replaced and self.choose("cpu")[0] == "cpu"

    def forward_native(self, edits: Edits, logits: Any) -> None:
        """Run vectorised PyTorch: a few launches for each kind of edit."""
        from logitport.ops.apply_edits import native

        native.apply_edits(edits, logits, self.compiled)

    def forward_cpu(self, edits: Edits, logits: Any) -> None:
        """Run the compiled core, or numpy, on the tensor's own memory."""
        if not cpu.apply_edits_compiled(edits, logits):
            cpu.apply_edits(edits, logits)

    def forward_cuda(self, edits: Edits, logits: Any) -> None:
        """Copy the edits to the device once, and launch one kernel."""
        from logitport.ops.apply_edits import triton

        triton.apply_edits(edits, logits)
