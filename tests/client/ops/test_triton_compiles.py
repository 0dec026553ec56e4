"""The kernel compiles for real GPUs, without one. Triton's interpreter accepts code that its compiler refuses."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from types import ModuleType

CODE = {"cuda": "cubin", "hip": "hsaco"}


@pytest.mark.parametrize(
    ("backend", "architecture", "warp_size", "dtype"),
    [
        ("cuda", 80, 32, "fp32"),
        ("cuda", 90, 32, "fp32"),
        ("cuda", 90, 32, "fp16"),
        ("cuda", 90, 32, "bf16"),
        ("hip", "gfx942", 64, "bf16"),
    ],
)
def test_the_kernel_compiles(
    compiled_triton_module: ModuleType, backend: str, architecture: int | str, warp_size: int, dtype: str
) -> None:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    module = compiled_triton_module
    constants = {"id_stride": 1, "BLOCK": module.BLOCK, "CHUNK": module.CHUNK}
    signature = {"logits": f"*{dtype}", "plan": "*i32", "kept": f"*{dtype}", "row_stride": "i32"}
    signature |= dict.fromkeys(constants, "constexpr") | {"width": "i32", "num_biases": "i32"}
    names = module.edit_block.arg_names
    source = ASTSource(module.edit_block, {name: signature[name] for name in names}, constexprs=constants)
    target = GPUTarget(backend, architecture, warp_size)
    compiled = triton.compile(source, target=target, options={"num_warps": module.WARPS})
    assert compiled.asm[CODE[backend]]
