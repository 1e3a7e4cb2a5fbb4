"""out = a · bᵀ for any M and N: one 64 × 128 tile per CTA, K in blocks of 64 that arrive while others are multiplied.

    producer: one thread of warp 4        ring of STAGES stages          consumers: warps 0 to 3, one warpgroup
    for block:                           ┌────────────────────┐          for block:
      wait empty[s] ───────────────────► │ a 64×64 │ b 128×64 │ ◄─────────  wait full[s]
      expect_tx(full[s]); TMA a, b ────► └────────────────────┘            4 × wgmma; wait; arrive empty[s]

New here: two roles in one kernel. full[s] completes when a stage's bytes have arrived, empty[s] when each of the four
consumer warps is done with it. Each role counts its stage and the phase of its turn around the ring. The producer waits
for the other parity first: an mbarrier that was never used counts as having completed the phase before.
"""

from __future__ import annotations

import torch

from examples.one_wgmma import integers, multiply, store
from examples.run import Run, main
from pyptx_ops.dsl import Kernel, Reg, SharedRef, TensorMapSpec, Var, ptx, special
from pyptx_ops.dsl.macros import ceil_div, wait_parity

TILE_M, TILE_N, TILE_K = 64, 128, 64
STAGES = 4
A_BYTES, B_BYTES = TILE_M * TILE_K * 2, TILE_N * TILE_K * 2
STAGE_BYTES = A_BYTES + B_BYTES
CONSUMER_WARPS = 4


def build() -> Kernel:
    with Kernel("pipelined_gemm", block=(32 * (CONSUMER_WARPS + 1), 1, 1)) as k:
        a = k.tensor_map("a", TensorMapSpec("bf16", box=(TILE_K, TILE_M), swizzle=128))
        b = k.tensor_map("b", TensorMapSpec("bf16", box=(TILE_K, TILE_N), swizzle=128))
        out = k.param("out", "pointer")
        m, n, depth = k.param("m", "u32"), k.param("n", "u32"), k.param("k", "u32")
        smem = k.dynamic_shared()
        stages = smem.array("stages", STAGES * STAGE_BYTES, 1024)
        full, empty = smem.array("full", 8 * STAGES, 8), smem.array("empty", 8 * STAGES, 8)
        thread = ptx.mov(special("tid.x"), type="u32")
        row = ptx.mov(special("ctaid.y"), type="u32") * TILE_M
        column = ptx.mov(special("ctaid.x"), type="u32") * TILE_N
        with k.if_(thread == 0):
            for i in range(STAGES):
                ptx.mbarrier.init(full.at(8 * i), 1)
                ptx.mbarrier.init(empty.at(8 * i), CONSUMER_WARPS)
            ptx.fence.mbarrier_init()
        ptx.bar.sync(0)
        blocks = ceil_div(depth, TILE_K)
        with k.if_(thread == 32 * CONSUMER_WARPS):
            produce(k, a, b, row, column, blocks, stages, full, empty)
        with k.if_(thread < 32 * CONSUMER_WARPS):
            accumulator = k.regs("f32", TILE_N // 2)
            stage, phase = k.var("u32", 0), k.var("u32", 0)
            for block in k.range(blocks):  # a run-time loop: its body is traced once
                wait_parity(full.reg() + (stage << 3), phase)
                tile = stages.reg() + stage * STAGE_BYTES
                multiply(accumulator, tile, tile + A_BYTES, accumulate=block != 0)
                ptx.wgmma.wait_group(0)
                ptx.mbarrier.arrive(empty.reg() + (stage << 3), pred=(thread & 31) == 0)
                advance(stage, phase)
            store(k, out, accumulator, thread, rows=m, columns=n, row=row, column=column)
        ptx.ret()
    return k


def produce(
    k: Kernel, a: Reg, b: Reg, row: Reg, column: Reg, blocks: Reg, stages: SharedRef, full: SharedRef, empty: SharedRef
) -> None:
    """Load every K block of both operands into the next free stage."""
    stage, phase = k.var("u32", 0), k.var("u32", 1)
    for block in k.range(blocks):
        wait_parity(empty.reg() + (stage << 3), phase)
        arrived = full.reg() + (stage << 3)
        tile = stages.reg() + stage * STAGE_BYTES
        along_k = (block * TILE_K).as_type("s32")
        ptx.mbarrier.arrive.expect_tx(arrived, STAGE_BYTES)
        ptx.cp.async_.bulk.tensor.load(tile, a, (along_k, row.as_type("s32")), arrived, dim="2d")
        ptx.cp.async_.bulk.tensor.load(tile + A_BYTES, b, (along_k, column.as_type("s32")), arrived, dim="2d")
        advance(stage, phase)


def advance(stage: Var, phase: Var) -> None:
    """Go on to the next stage; the phase flips when the ring wraps."""
    stage += 1
    wrapped = stage == STAGES
    ptx.mov(0, type="u32", out=stage, pred=wrapped)
    ptx.xor(phase, 1, type="b32", out=phase, pred=wrapped)


def check(run: Run, device: str) -> None:
    for m, n, k in ((64, 128, 64), (1, 1, 8), (65, 130, 72), (100, 200, 520)):
        a, b = integers(device, m, k), integers(device, n, k)
        out = torch.full((m, n), torch.nan, device=device)
        run((-(-n // TILE_N), -(-m // TILE_M), 1), a, b, out, m, n, k)
        torch.testing.assert_close(out, a.float() @ b.float().t(), rtol=0, atol=0)


if __name__ == "__main__":
    main(build(), check)
