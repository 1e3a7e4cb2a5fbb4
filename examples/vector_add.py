"""out[i] = x[i] + y[i]: one thread per element.

New here: a kernel is traced. Python runs once, top to bottom; each `ptx` call and each operator on a register appends
one instruction. Sizes are parameters, so the one kernel takes any n.
"""

from __future__ import annotations

import torch

from examples.run import Run, main
from pyptx_ops.dsl import Kernel, ptx, special

THREADS = 256


def build() -> Kernel:
    with Kernel("vector_add", block=(THREADS, 1, 1)) as k:
        x, y, out = k.param("x", "pointer"), k.param("y", "pointer"), k.param("out", "pointer")
        n = k.param("n", "u32")
        block = ptx.mov(special("ctaid.x"), type="u32")
        index = block * THREADS + ptx.mov(special("tid.x"), type="u32")  # mov, mul.lo, add
        with k.if_(index < n):  # setp, and a branch around the block where it does not hold
            offset = ptx.mul.wide(index, 4)  # 32 × 32 bits give 64: bytes
            total = ptx.ld(x + offset, space="global", type="f32") + ptx.ld(y + offset, space="global", type="f32")
            ptx.st(out + offset, total, space="global")
        ptx.ret()
    return k


def check(run: Run, device: str) -> None:
    for n in (1, THREADS, 10_007):
        x, y = torch.randn(2, n, device=device)
        out = torch.full_like(x, torch.nan)
        run((-(-n // THREADS), 1, 1), x, y, out, n)
        torch.testing.assert_close(out, x + y, rtol=0, atol=0)


if __name__ == "__main__":
    main(build(), check)
