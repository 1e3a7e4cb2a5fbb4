"""out = a · bᵀ for any M and N on a persistent grid: one CTA per SM, which takes tile after tile.

    warpgroup 2: producer (one warp)     ring of stages      warpgroups 0, 1: consumers (64 rows each)
    for tile, for block: load       ──► a 128×64 │ b 256×64 ──► for tile: for block: wgmma
                                                                          store the tile, while the producer
                                                                          already loads the next one

New here: the ring runs on from tile to tile, so loads and stores overlap. setmaxnreg moves registers from the producer,
which needs few, to the consumers, whose accumulators are 128 registers of each thread. A consumer frees a stage only
when the next one is being multiplied, so one wgmma group is always in flight. Ring and schedule are those of the ops:
`pyptx_ops/kernels/hopper/gemm.py` is this kernel with everything that an op needs besides.
"""

from __future__ import annotations

import torch

from examples.one_wgmma import integers, multiply, store
from examples.run import Run, main
from pyptx_ops.dsl import Kernel, Reg, SharedRef, TensorMapSpec, ptx, special
from pyptx_ops.dsl.macros import ceil_div, elect_one
from pyptx_ops.kernels.ring import Barriers, Ring
from pyptx_ops.kernels.schedule import StaticSchedule

TILE_M, TILE_N, TILE_K = 128, 256, 64
STAGES, CONSUMERS = 4, 2
A_BYTES, B_BYTES = TILE_M * TILE_K * 2, TILE_N * TILE_K * 2
STAGE_BYTES = A_BYTES + B_BYTES


def build() -> Kernel:
    with Kernel("persistent_gemm", block=(128 * (CONSUMERS + 1), 1, 1), min_blocks=1) as k:
        a = k.tensor_map("a", TensorMapSpec("bf16", box=(TILE_K, TILE_M), swizzle=128))
        b = k.tensor_map("b", TensorMapSpec("bf16", box=(TILE_K, TILE_N), swizzle=128))
        out = k.param("out", "pointer")
        m, n, depth = k.param("m", "u32"), k.param("n", "u32"), k.param("k", "u32")
        smem = k.dynamic_shared()
        stages = smem.array("stages", STAGES * STAGE_BYTES, 1024)
        barriers = Barriers(smem, STAGES)
        thread = ptx.mov(special("tid.x"), type="u32")
        with k.if_(thread == 0):
            barriers.init(consumer_warps=4 * CONSUMERS)
            ptx.fence.mbarrier_init()
        ptx.bar.sync(0)
        with k.if_((thread >> 7) == CONSUMERS):
            ptx.setmaxnreg(40, action="dec")
            with k.if_((thread & 127) < 32):
                produce(k, a, b, schedule(k, m, n, depth), stages, Ring(k, barriers, producer=True))
        with k.else_():
            ptx.setmaxnreg(232, action="inc")
            consume(k, out, m, n, schedule(k, m, n, depth), stages, Ring(k, barriers, producer=False), thread)
        ptx.ret()
    return k


def schedule(k: Kernel, m: Reg, n: Reg, depth: Reg) -> StaticSchedule:
    """Tiles dealt round robin to the CTAs; both roles walk the same list."""
    worker, workers = ptx.mov(special("ctaid.x"), type="u32"), ptx.mov(special("nctaid.x"), type="u32")
    k_blocks = ceil_div(depth, TILE_K)
    return StaticSchedule(k, worker=worker, workers=workers, m=m, n=n, k_blocks=k_blocks, tokens=TILE_M, weights=TILE_N)


def produce(k: Kernel, a: Reg, b: Reg, tiles: StaticSchedule, stages: SharedRef, ring: Ring) -> None:
    """One warp, of which one lane does the loading: every K block of every tile into the next free stage."""
    leader = elect_one()
    with k.loop():
        tile = tiles.next()  # leaves the loop after the last one
        for block in k.range(tile.k_blocks):
            ring.wait_empty()
            with k.if_(leader):
                full, stage = ring.full(), stages.reg() + ring.stage * STAGE_BYTES
                along_k, row, column = (c.as_type("s32") for c in (block * TILE_K, tile.token, tile.weight))
                ptx.mbarrier.arrive.expect_tx(full, STAGE_BYTES)
                ptx.cp.async_.bulk.tensor.load(stage, a, (along_k, row), full, dim="2d")
                ptx.cp.async_.bulk.tensor.load(stage + A_BYTES, b, (along_k, column), full, dim="2d")
            ring.advance()


def consume(
    k: Kernel, out: Reg, m: Reg, n: Reg, tiles: StaticSchedule, stages: SharedRef, ring: Ring, thread: Reg
) -> None:
    """One warpgroup: multiply its 64 rows of every tile and store them."""
    accumulator = k.regs("f32", TILE_N // 2)
    my_rows = (thread >> 7) * 64
    a = stages.reg() + my_rows * (TILE_K * 2)
    b = stages.reg() + A_BYTES
    one_lane = (thread & 31) == 0
    with k.loop():
        tile = tiles.next()
        before = k.var("u32", 0)  # the empty barrier of the stage before
        for block in k.range(tile.k_blocks):
            ring.wait_full()
            offset = ring.stage * STAGE_BYTES
            multiply(accumulator, a + offset, b + offset, accumulate=block != 0)
            ptx.wgmma.wait_group(1)  # the group before this one is done
            ring.release(before, one_lane & (block != 0))
            before.set(ring.empty())
            ring.advance()
        ptx.wgmma.wait_group(0)
        ring.release(before, one_lane)
        store(k, out, accumulator, thread, rows=m, columns=n, row=tile.token + my_rows, column=tile.weight)


def check(run: Run, device: str) -> None:
    for m, n, k in ((128, 256, 64), (1, 1, 8), (129, 257, 72), (300, 300, 392)):
        a, b = integers(device, m, k), integers(device, n, k)
        out = torch.full((m, n), torch.nan, device=device)
        run((2, 1, 1), a, b, out, m, n, k)  # few CTAs, so that each takes several tiles
        torch.testing.assert_close(out, a.float() @ b.float().t(), rtol=0, atol=0)


if __name__ == "__main__":
    main(build(), check)
