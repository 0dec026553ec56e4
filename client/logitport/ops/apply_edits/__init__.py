"""Apply edits to logits, in place.

Within a row a FORCE comes first, and what follows it commutes: -inf stays -inf whatever finite value is added to it.
So every implementation does all edits of one kind at once, in this order: FORCE, BIAS, ALLOW, BITMASK, DENY.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from logitport.ops.apply_edits import cpu
from logitport.ops.logit_op import LogitOp

if TYPE_CHECKING:
    from logitport.core.edits import Edits


def apply_edits(edits: Edits, logits: Any) -> None:
    """Apply edits to logits, in place, with the implementation of the platform on which they lie.

    Rows without an edit, and values that an edit keeps, stay bit-identical. What several BIASes add to one id is
    summed, then added in float32, and rounded to the logits' dtype once: all platforms give the same bits.

    Args:
        edits: checked against these logits, as `Edits.check` does; nothing is checked again here.
        logits: float32, float16 or bfloat16 [rows, vocab_size], a torch tensor on any device or a numpy array, with
            any strides. Ids past the words of a BITMASK are denied.

    Raises:
        InvalidLogits: another dtype, or an array that cannot be written to.
    """
    LogitOp.get("apply_edits")(edits, logits)


@LogitOp.register("apply_edits")
class ApplyEdits(LogitOp):
    """The op behind `apply_edits`."""

    requires: ClassVar = {"cuda": "triton"}

    def forward_native(self, edits: Edits, logits: Any) -> None:
        """Vectorised PyTorch, a few launches for each kind of edit."""
        from logitport.ops.apply_edits import native

        native.apply_edits(edits, logits, self.compiled)

    def forward_cpu(self, edits: Edits, logits: Any) -> None:
        """Arrays of numpy on the tensor's own memory."""
        cpu.apply_edits(edits, logits)

    def forward_cuda(self, edits: Edits, logits: Any) -> None:
        """One copy to the device and one launch."""
        from logitport.ops.apply_edits import triton

        triton.apply_edits(edits, logits)
