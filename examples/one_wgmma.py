"""out = a · bᵀ for one tile: a is 64 × 64, b is N × 64, out is 64 × N; one warpgroup, four wgmma instructions.

    TMA a, b ──► shared memory, 128-byte rows, swizzled ──► wgmma ──► registers ──► out

New here: wgmma reads its operands from shared memory, where a 64-bit descriptor finds them. The tensor map's swizzle
and the descriptor's must be the same. A warpgroup is 128 threads; thread t holds N / 2 of the 64 × N results:

    row = 16 · (warp of t) + (lane / 4) + 8 · (i / 2 mod 2),  column = 8 · (i / 4) + 2 · (lane mod 4) + i mod 2

for its register i (PTX ISA, "Register Fragments for wgmma.mma_async.m64nNk16", matrix D).
"""

from __future__ import annotations

import torch

from examples.run import Run, main
from pyptx_ops.dsl import Kernel, Reg, RegArray, TensorMapSpec, ptx, special
from pyptx_ops.dsl.desc import k_major_128b
from pyptx_ops.dsl.macros import wait_parity

M, N, K = 64, 96, 64
A_BYTES, B_BYTES = M * K * 2, N * K * 2


def build() -> Kernel:
    with Kernel("one_wgmma", block=(128, 1, 1)) as k:
        a = k.tensor_map("a", TensorMapSpec("bf16", box=(K, M), swizzle=128))
        b = k.tensor_map("b", TensorMapSpec("bf16", box=(K, N), swizzle=128))
        out = k.param("out", "pointer")
        smem = k.dynamic_shared()
        a_tile, b_tile = smem.array("a", A_BYTES, 1024), smem.array("b", B_BYTES, 1024)  # where the swizzle repeats
        barrier = smem.array("barrier", 8, 8)
        thread = ptx.mov(special("tid.x"), type="u32")
        with k.if_(thread == 0):
            ptx.mbarrier.init(barrier, 1)
            ptx.fence.mbarrier_init()
            ptx.mbarrier.arrive.expect_tx(barrier, A_BYTES + B_BYTES)
            ptx.cp.async_.bulk.tensor.load(a_tile, a, (0, 0), barrier, dim="2d")
            ptx.cp.async_.bulk.tensor.load(b_tile, b, (0, 0), barrier, dim="2d")
        ptx.bar.sync(0)  # no thread waits at a barrier that is not initialised
        wait_parity(barrier.reg(), 0)
        accumulator = k.regs("f32", N // 2)
        multiply(accumulator, a_tile.reg(), b_tile.reg())
        ptx.wgmma.wait_group(0)
        store(k, out, accumulator, thread, rows=M, columns=N)
        ptx.ret()
    return k


def multiply(accumulator: RegArray, a: Reg, b: Reg, accumulate: Reg | int = 0) -> None:
    """accumulator (+)= a · bᵀ for 64 columns of K, as one group; where `accumulate` is false the sum starts anew."""
    layout = k_major_128b()
    a, b = layout.at(a), layout.at(b)
    ptx.wgmma.fence()
    for step in range(K // 16):  # Python's loop: four instructions; one takes 16 of K
        ptx.wgmma.mma_async(
            accumulator, layout.advance(a, step), layout.advance(b, step), accumulate if step == 0 else 1, 1, 1, 0, 0,
            shape=f"m64n{len(accumulator) * 2}k16", dtype="f32", atype="bf16", btype="bf16",
        )  # fmt: skip
    ptx.wgmma.commit_group()


def store(
    k: Kernel, out: Reg, accumulator: RegArray, thread: Reg, *, rows: Reg | int, columns: Reg | int,
    row: Reg | int = 0, column: Reg | int = 0,
) -> None:  # fmt: skip
    """out[row …, column …] = the tile, as far as out (fp32, rows × columns) goes."""
    lane = thread & 31
    first_row = (((thread >> 5) & 3) << 4) + (lane >> 2) + row
    first_column = ((lane & 3) << 1) + column
    for half in (0, 1):
        here = first_row + 8 * half
        with k.if_(here < rows):
            index = ptx.mul.wide(here, columns) + ptx.cvt(first_column, type="u64", src="u32")
            address = out + (index << 2)
            for i in range(2 * half, len(accumulator), 4):
                for odd in (0, 1):
                    offset = 2 * i - 4 * half + odd  # columns from the first
                    inside = first_column + offset < columns
                    ptx.st(address.at(4 * offset), accumulator[i + odd], space="global", pred=inside)


def check(run: Run, device: str) -> None:
    a, b = integers(device, M, K), integers(device, N, K)
    out = torch.full((M, N), torch.nan, device=device)
    run((1, 1, 1), a, b, out)
    torch.testing.assert_close(out, a.float() @ b.float().t(), rtol=0, atol=0)


def integers(device: str, *shape: int) -> torch.Tensor:
    """Small integers: their sums of products are exact in fp32, so results must be equal, whatever the order."""
    return torch.randint(-4, 5, shape, device=device).to(torch.bfloat16)


if __name__ == "__main__":
    main(build(), check)
