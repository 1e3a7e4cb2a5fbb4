"""Kernels with steps that can be left out: each of the bugs that an H200 and racecheck were tried on, in a kernel of
its own shape. A kernel with all its steps is right."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

from pyptx_ops.dsl import Kernel, Reg, RegArray, ptx, special
from pyptx_ops.dsl.desc import MatrixDescriptor
from pyptx_ops.dsl.macros import wait_parity

THREADS = 128
NBYTES = 4 * THREADS  # of a buffer
TURNS = 5  # of the pipeline: each of its two stages is used again
TILE = 16 * 8 * 2  # bytes of B: 8 rows of 16 bf16, in 8 × 8 blocks without swizzle
ONES = 0x3F803F80
Steps = frozenset[str]


def pipeline(steps: Steps) -> Kernel:
    """x + 1: bulk copies into two stages in turn, ordinary stores to a third buffer, bulk stores from there."""
    with Kernel("pipeline", block=(THREADS, 1, 1)) as k:
        source, out = k.param("source", "pointer"), k.param("out", "pointer")
        smem = k.dynamic_shared(128)
        stages, result = smem.array("stages", 2 * NBYTES, 128), smem.array("result", NBYTES, 128)
        full, empty = smem.array("full", 16, 8), smem.array("empty", 16, 8)
        thread = ptx.mov(special("tid.x"), type="u32")
        with k.if_(thread == 0):
            for stage in range(2):
                ptx.mbarrier.init(full.at(8 * stage), 1)
                ptx.mbarrier.init(empty.at(8 * stage), THREADS)
            ptx.fence.mbarrier_init()
        ptx.bar.sync(0)
        for turn in range(TURNS):
            stage, parity = turn % 2, turn // 2 % 2
            loaded, is_full, is_empty = stages.reg() + NBYTES * stage, full.reg() + 8 * stage, empty.reg() + 8 * stage
            with k.if_(thread == 0):
                if turn >= 2:
                    wait_parity(is_empty, parity ^ 1)
                ptx.mbarrier.arrive.expect_tx(is_full, NBYTES)
                ptx.cp.async_.bulk.load(loaded, source + NBYTES * turn, NBYTES, is_full)
            if "wait for the load" in steps:
                wait_parity(is_full, parity)
            value = ptx.ld(loaded + thread * 4, space="shared::cta", type="u32")  # reads the stage
            ptx.mbarrier.arrive(is_empty)
            ptx.st(result.reg() + thread * 4, value + 1, space="shared::cta", type="u32")  # writes the result
            if "proxy fence" in steps:
                ptx.fence.proxy.async_(space="shared::cta")
            ptx.bar.sync(0)
            with k.if_(thread == 0):
                ptx.cp.async_.bulk.store(out + NBYTES * turn, result.reg(), NBYTES)
                ptx.cp.async_.bulk.commit_group()
                ptx.cp.async_.bulk.wait_group(0 if "wait for the store" in steps or turn == TURNS - 1 else 1)
            if "barrier behind the store" in steps:
                ptx.bar.sync(0)
        ptx.ret()
    return k


def refill(steps: Steps) -> Kernel:
    """A stage is read by all threads and then filled again."""
    with Kernel("refill", block=(THREADS, 1, 1)) as k:
        source, out = k.param("source", "pointer"), k.param("out", "pointer")
        smem = k.dynamic_shared(128)
        stage, full = smem.array("stage", NBYTES, 128), smem.array("full", 8, 8)
        thread = ptx.mov(special("tid.x"), type="u32")
        with k.if_(thread == 0):
            ptx.mbarrier.init(full, 1)
            ptx.fence.mbarrier_init()
        ptx.bar.sync(0)
        for turn in range(2):
            with k.if_(thread == 0):
                ptx.mbarrier.arrive.expect_tx(full, NBYTES)
                ptx.cp.async_.bulk.load(stage.reg(), source + NBYTES * turn, NBYTES, full.reg())  # fills the stage
            if turn == 0 or "wait at the end" in steps:
                wait_parity(full.reg(), turn)
            if turn == 0:
                value = ptx.ld(stage.reg() + thread * 4, space="shared::cta", type="u32")
                ptx.st(out + ptx.mul.wide(thread, 4), value, space="global")
                if "barrier" in steps:
                    ptx.bar.sync(0)
        ptx.ret()
    return k


def neighbours(steps: Steps) -> Kernel:
    """Each thread reads what a thread of another warp wrote."""
    with Kernel("neighbours", block=(THREADS, 1, 1)) as k:
        source, out = k.param("source", "pointer"), k.param("out", "pointer")
        buffer = k.dynamic_shared(128).array("buffer", NBYTES, 128)
        thread = ptx.mov(special("tid.x"), type="u32")
        value = ptx.ld(source + ptx.mul.wide(thread, 4), space="global", type="u32")
        ptx.st(buffer.reg() + thread * 4, value, space="shared::cta", type="u32")
        if "barrier" in steps:
            ptx.bar.sync(0)
        other = ptx.ld(buffer.reg() + (thread ^ (THREADS - 1)) * 4, space="shared::cta", type="u32")  # another's
        ptx.st(out + ptx.mul.wide(thread, 4), other, space="global")
        ptx.ret()
    return k


def store_product(out: Reg, thread: Reg, sums: RegArray) -> None:
    """The fragment of 64 × 8 sums."""
    lane = thread & 31
    row, column = (thread >> 5) * 16 + (lane >> 2), (lane & 3) << 1
    place = out + ptx.mul.wide(row * 8 + column, 4)
    for i, total in enumerate(sums):
        ptx.st(place.at(4 * (i % 2) + 4 * 8 * 8 * (i // 2)), total, space="global")


def product(k: Kernel, tile: Reg) -> RegArray:
    """Ones in registers times the tile of B, not waited for."""
    sums, ones = k.regs("f32", 4), ptx.mov(ONES, type="b32")
    for total in sums:
        ptx.mov(0.0, type="f32", out=total)
    ptx.wgmma.fence()
    b = MatrixDescriptor(leading=128, stride=256, swizzle=0, k_step=256).at(tile)
    ptx.wgmma.mma_async.rs(
        sums, [ones] * 4, b, 0, 1, 1, 0, shape="m64n8k16", dtype="f32", atype="bf16", btype="bf16"
    )  # multiplies
    ptx.wgmma.commit_group()
    return sums


def multiply_stored(steps: Steps) -> Kernel:
    """wgmma on a tile that ordinary stores wrote."""
    with Kernel("multiply_stored", block=(THREADS, 1, 1)) as k:
        source, out = k.param("source", "pointer"), k.param("out", "pointer")
        tile = k.dynamic_shared(128).array("tile", TILE, 128).reg()
        thread = ptx.mov(special("tid.x"), type="u32")
        value = ptx.ld(source + ptx.mul.wide(thread, 2), space="global", type="b16")
        ptx.st(tile + thread * 2, value, space="shared::cta", type="b16")
        if "proxy fence" in steps:
            ptx.fence.proxy.async_(space="shared::cta")
        ptx.bar.sync(0)
        sums = product(k, tile)
        if "left alone" not in steps:
            ptx.st(tile + thread * 2, value, space="shared::cta", type="b16")  # overwrites the tile
        ptx.wgmma.wait_group(0)
        store_product(out, thread, sums)
        ptx.ret()
    return k


def multiply_loaded(steps: Steps) -> Kernel:
    """wgmma on a tile that a bulk copy brings, where other values lay before."""
    with Kernel("multiply_loaded", block=(THREADS, 1, 1)) as k:
        source, out = k.param("source", "pointer"), k.param("out", "pointer")
        smem = k.dynamic_shared(128)
        tile, full = smem.array("tile", TILE, 128).reg(), smem.array("full", 8, 8)
        thread = ptx.mov(special("tid.x"), type="u32")
        ptx.st(tile + thread * 2, thread, space="shared::cta", type="b16")
        with k.if_(thread == 0):
            ptx.mbarrier.init(full, 1)
            ptx.fence.mbarrier_init()
        ptx.fence.proxy.async_(space="shared::cta")
        ptx.bar.sync(0)
        with k.if_(thread == 0):
            ptx.mbarrier.arrive.expect_tx(full, TILE)
            ptx.cp.async_.bulk.load(tile, source, TILE, full.reg())
        if "wait for the load" in steps:
            wait_parity(full.reg(), 0)
        sums = product(k, tile)
        ptx.wgmma.wait_group(0)
        store_product(out, thread, sums)
        wait_parity(full.reg(), 0)
        ptx.ret()
    return k


def exchange(steps: Steps) -> Kernel:
    """Each CTA of a pair writes into the other one's shared memory."""
    with Kernel("exchange", block=(THREADS, 1, 1), cluster=(2, 1, 1)) as k:
        source, out = k.param("source", "pointer"), k.param("out", "pointer")
        mine = k.dynamic_shared(128).array("mine", NBYTES, 128)
        thread = ptx.mov(special("tid.x"), type="u32")
        rank = ptx.mov(special("cluster_ctarank"), type="u32")
        place = ptx.mul.wide(thread + rank * THREADS, 4)
        value = ptx.ld(source + place, space="global", type="u32")
        if "barrier at the start" in steps:
            ptx.barrier.cluster.arrive(sem="relaxed")
            ptx.barrier.cluster.wait()
        theirs = ptx.mapa(mine.reg() + thread * 4, rank ^ 1, type="u32", space="shared::cluster")
        ptx.st(theirs, value, space="shared::cluster")  # writes to the other CTA
        if "cluster barrier" in steps:
            ptx.barrier.cluster.arrive()
            ptx.barrier.cluster.wait()
        got = ptx.ld(mine.reg() + thread * 4, space="shared::cta", type="u32")  # reads its own
        ptx.st(out + place, got, space="global")
        ptx.barrier.cluster.arrive()
        ptx.barrier.cluster.wait()
        ptx.ret()
    return k


def unwaited(steps: Steps) -> Kernel:
    """A bulk copy that nobody reads."""
    with Kernel("unwaited", block=(THREADS, 1, 1)) as k:
        source, out = k.param("source", "pointer"), k.param("out", "pointer")
        smem = k.dynamic_shared(128)
        buffer, full = smem.array("buffer", NBYTES, 128), smem.array("full", 8, 8)
        thread = ptx.mov(special("tid.x"), type="u32")
        with k.if_(thread == 0):
            ptx.mbarrier.init(full, 1)
            ptx.fence.mbarrier_init()
        ptx.bar.sync(0)
        with k.if_(thread == 0):
            ptx.mbarrier.arrive.expect_tx(full, NBYTES)
            ptx.cp.async_.bulk.load(buffer.reg(), source, NBYTES, full.reg())
            if "wait for the load" in steps:
                wait_parity(full.reg(), 0)
        ptx.st(out + ptx.mul.wide(thread, 4), thread, space="global")
        ptx.ret()
    return k


class Planted(NamedTuple):
    """A kernel, its input, the result with all steps, and its steps."""

    build: Callable[[Steps], Kernel]
    source: Callable[[], torch.Tensor]
    wanted: Callable[[torch.Tensor], torch.Tensor]
    steps: frozenset[str]
    ctas: int = 1


def words() -> torch.Tensor:
    return torch.randint(-(2**30), 2**30, (TURNS * THREADS,), dtype=torch.int32)


def tile() -> torch.Tensor:
    return torch.randint(-8, 9, (2, 8, 8)).bfloat16()  # K block, row, k


def summed(tile: torch.Tensor) -> torch.Tensor:
    """The product of ones with B: its row sums, exact in fp32, as bits."""
    return tile.float().sum((0, 2)).repeat(64).view(torch.int32)


PLANTED = {
    "pipeline": Planted(
        pipeline, words, lambda x: x + 1,
        frozenset({"wait for the load", "proxy fence", "wait for the store", "barrier behind the store"}),
    ),
    "refill": Planted(refill, words, lambda x: x[:THREADS], frozenset({"barrier", "wait at the end"})),
    "neighbours": Planted(neighbours, words, lambda x: x[:THREADS].flip(0), frozenset({"barrier"})),
    "multiply_stored": Planted(multiply_stored, tile, summed, frozenset({"proxy fence", "left alone"})),
    "multiply_loaded": Planted(multiply_loaded, tile, summed, frozenset({"wait for the load"})),
    "exchange": Planted(
        exchange, words, lambda x: x[: 2 * THREADS].view(2, THREADS).flip(0).flatten(),
        frozenset({"barrier at the start", "cluster barrier"}), 2,
    ),
    "unwaited": Planted(unwaited, words, lambda x: torch.arange(THREADS), frozenset({"wait for the load"})),
}  # fmt: skip
