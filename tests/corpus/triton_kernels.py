"""Triton kernels; writes their PTX into made/ and examples/. python -m tests.corpus.triton_kernels needs no GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import triton
import triton.language as tl
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

HERE = Path(__file__).parent
EXAMPLES = HERE.parents[1] / "examples"
HOPPER = GPUTarget("cuda", 90, 32)


@triton.jit
def axpy(x, y, out, alpha, n, BLOCK: tl.constexpr):  # noqa: N803
    """out = alpha x + y."""
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    result = alpha * tl.load(x + offs, mask=mask) + tl.load(y + offs, mask=mask)
    tl.store(out + offs, result, mask=mask)


@triton.jit
def product(a, b, out, K, TILE: tl.constexpr, BLOCK_K: tl.constexpr):  # noqa: N803
    """out = a b, a tile of it per program, with tensor maps."""
    row, column = tl.program_id(0) * TILE, tl.program_id(1) * TILE
    total = tl.zeros((TILE, TILE), tl.float32)
    for k in range(0, K, BLOCK_K):
        total = tl.dot(a.load([row, k]), b.load([k, column]), total)
    out.store([row, column], total.to(tl.bfloat16))


def write(path: Path, function: Any, signature: dict[str, str], constants: dict[str, int], *, line_info: bool) -> None:
    knobs.compilation.disable_line_info = not line_info
    source = ASTSource(function, signature | dict.fromkeys(constants, "constexpr"), constants)
    options = {"num_warps": 4, "ptx_version": 88, "enable_fp_fusion": True}
    text = triton.compile(source, target=HOPPER, options=options).asm["ptx"]
    text = text.replace(str(HERE.resolve()), "/tmp/corpus").replace(str(Path(triton.__file__).parent), "/tmp/triton")
    path.write_text(text)


if __name__ == "__main__":
    axpy_arguments = {"x": "*fp32", "y": "*fp32", "out": "*fp32", "alpha": "fp32", "n": "i32"}
    write(EXAMPLES / "triton_axpy.ptx", axpy, axpy_arguments, {"BLOCK": 128}, line_info=False)
    a, b, out = (f"tensordesc<bf16[{shape}]>" for shape in ("64,32", "32,64", "64,64"))
    write(
        HERE / "made/triton_product.ptx",
        product,
        {"a": a, "b": b, "out": out, "K": "i32"},
        {"TILE": 64, "BLOCK_K": 32},
        line_info=True,
    )
