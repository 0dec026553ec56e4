"""Apply edits to logits, in place.

Within a row, a FORCE is the first edit, and the edits after it commute: -inf plus a finite value is -inf.
An implementation may therefore apply all edits of one kind at once, in this order: FORCE, BIAS, ALLOW, BITMASK, DENY.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from logitport.core.compiled import core
from logitport.errors import InvalidArgument
from logitport.ops.apply_edits import cpu

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from logitport.core.edits import Edits

# NVIDIA's GPUs are "cuda", AMD's "hip", Intel's "xpu"; devices with a torch backend out of tree are "oot".
PLATFORMS = ("cpu", "cuda", "hip", "xpu", "tpu", "oot")


class ApplyEdits:
    """Applies edits with the implementation of the logits' device. Derive from it to add or replace one.

    A method `forward_<platform>` takes (edits, logits), as `logitport.ops.apply_edits`. Platforms without one run
    `forward_native`.

    Args:
        with_kernels: whether to use other implementations than the native one.

    Attributes:
        requires: the package that a platform's implementation needs; without it the native one runs.
        uses_core: whether the compiled core applies edits to logits in the memory of the CPU, if it can: see `cpu`.
    """

    requires: ClassVar[Mapping[str, str]] = {"cuda": "triton"}

    def __init__(self, *, with_kernels: bool = True) -> None:
        self._with_kernels = with_kernels
        self._methods: dict[Any, Callable[[Edits, Any], None]] = {}  # by device
        is_replaced = type(self).forward_cpu is not ApplyEdits.forward_cpu
        self.uses_core = core is not None and not is_replaced and self.choose("cpu")[0] == "cpu"

    def __call__(self, edits: Edits, logits: Any) -> None:
        device = "cpu" if isinstance(logits, np.ndarray) else getattr(logits, "device", None)
        if device not in self._methods:
            if device is None:
                raise InvalidArgument(f"logits are a {type(logits).__name__}; pass a torch tensor or a numpy array")
            implementation, _ = self.choose(platform_of(device))
            self._methods[device] = getattr(self, f"forward_{implementation}")
        self._methods[device](edits, logits)

    def choose(self, platform: str) -> tuple[str, str]:
        """Return the implementation that runs on a platform ("cuda", "native", …), and the reason."""
        if not self._with_kernels:
            return "native", "custom_ops is none"
        candidates = ("hip", "cuda") if platform == "hip" else (platform,)
        implementation = next((one for one in candidates if hasattr(self, f"forward_{one}")), "native")
        package = self.requires.get(implementation)
        if package is not None and find_spec(package) is None:
            return "native", f"{package} is not installed"
        why = "custom_ops is all" if implementation == platform else f"no implementation for {platform}"
        return implementation, why

    def forward_native(self, edits: Edits, logits: Any) -> None:
        """Run vectorised PyTorch, on any device: a few launches for each kind of edit."""
        from logitport.ops.apply_edits import native

        native.apply_edits(edits, logits)

    def forward_cpu(self, edits: Edits, logits: Any) -> None:
        """Run the compiled core, or numpy, on the tensor's own memory."""
        if not cpu.apply_edits_compiled(edits, logits):
            cpu.apply_edits(edits, logits)

    def forward_cuda(self, edits: Edits, logits: Any) -> None:
        """Copy the edits to the device once, and launch one kernel."""
        from logitport.ops.apply_edits import triton

        triton.apply_edits(edits, logits)


def platform_of(device: Any) -> str:
    """Return the platform of a torch.device, or of its name."""
    kind = str(device).partition(":")[0]
    if kind == "cuda":  # torch's name for AMD's GPUs too
        import torch

        return "hip" if torch.version.hip else "cuda"
    return {"cpu": "cpu", "xpu": "xpu", "xla": "tpu"}.get(kind, "oot")
