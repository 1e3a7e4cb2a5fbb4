"""Small kernels with the planted bugs that an H200 and racecheck were tried on, and others of their kind.

Each kernel is right as it stands; leaving out one of its steps is found in every order, with the right report.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from pyptx_ops.dsl import Kernel, Reg, TensorMapSpec, ptx, special
from pyptx_ops.dsl.desc import k_major_128b
from pyptx_ops.dsl.macros import wait_parity
from pyptx_ops.dsl.sim import POLICIES, SimulationError
from pyptx_ops.simulator import SimulatedKernel, SimulatedLauncher

THREADS = 128
Steps = frozenset[str]


def _at(out: Reg, thread: Reg, turn: int) -> Reg:
    return out + ptx.mul.wide(thread, 4) + 4 * THREADS * turn


def bulk_store(steps: Steps) -> Kernel:
    """Shared memory is filled by all threads and stored twice by one."""
    with Kernel("bulk_store", block=(THREADS, 1, 1)) as k:
        out = k.param("out", "pointer")
        buffer = k.dynamic_shared(128).array("buffer", 4 * THREADS, 128)
        thread = ptx.mov(special("tid.x"), type="u32")
        for turn in range(2):
            ptx.st(buffer.reg() + thread * 4, thread + 1000 * turn, space="shared::cta", type="u32")
            if "proxy fence" in steps:
                ptx.fence.proxy.async_(space="shared::cta")
            if "barrier" in steps:
                ptx.bar.sync(0)
            with k.if_(thread == 0):
                ptx.cp.async_.bulk.store(out + 4 * THREADS * turn, buffer.reg(), 4 * THREADS)
                ptx.cp.async_.bulk.commit_group()
                if "wait" in steps:
                    ptx.cp.async_.bulk.wait_group(0)
            if "barrier" in steps:
                ptx.bar.sync(0)
        ptx.ret()
    return k


def multiply(steps: Steps) -> Kernel:
    """Operands written by ordinary stores; one wgmma of ones, which is read back."""
    with Kernel("multiply", block=(THREADS, 1, 1)) as k:
        out = k.param("out", "pointer")
        smem = k.dynamic_shared(1024)
        tile = smem.array("tile", 64 * 128 + 8 * 128, 1024)
        thread = ptx.mov(special("tid.x"), type="u32")
        ones = ptx.mov(0x3F803F80, type="u32")
        for i in range(18):
            ptx.st(tile.reg() + thread * 4 + 512 * i, ones, space="shared::cta", type="u32")
        if "proxy fence" in steps:
            ptx.fence.proxy.async_(space="shared::cta")
        if "barrier" in steps:
            ptx.bar.sync(0)
        sums = k.regs("f32", 4)
        a, b = k_major_128b().at(tile.reg()), k_major_128b().at(tile.reg() + 64 * 128)
        if "wgmma fence" in steps:
            ptx.wgmma.fence()
        ptx.wgmma.mma_async(sums, a, b, 0, 1, 1, 0, 0, shape="m64n8k16", dtype="f32", atype="bf16", btype="bf16")
        ptx.wgmma.commit_group()
        if "left alone" not in steps:
            ptx.st(tile.reg() + thread * 4, ones, space="shared::cta", type="u32")
        if "wait" in steps:
            ptx.wgmma.wait_group(0)
        ptx.st(_at(out, thread, 0), sums[0], space="global")
        ptx.ret()
    return k


def load(steps: Steps) -> Kernel:
    """A tile arrives by a tensor copy, is read by the CTA, and the next one takes its place."""
    with Kernel("load", block=(THREADS, 1, 1)) as k:
        source = k.tensor_map("source", TensorMapSpec("u32", (THREADS, 1)))
        out = k.param("out", "pointer")
        smem = k.dynamic_shared(1024)
        tile, full = smem.array("tile", 4 * THREADS, 128), smem.array("full", 8, 8)
        thread = ptx.mov(special("tid.x"), type="u32")
        with k.if_(thread == 0):
            ptx.mbarrier.init(full, 1)
            if "init fence" in steps:
                ptx.fence.mbarrier_init()
        if "barrier" in steps:
            ptx.bar.sync(0)
        for turn in range(2):
            with k.if_(thread == 0):
                ptx.mbarrier.arrive.expect_tx(full.reg(), 4 * THREADS)
                ptx.cp.async_.bulk.tensor.load(tile.reg(), source, [0, turn], full.reg(), dim="2d")
            if "wait" in steps:
                wait_parity(full.reg(), turn)
            value = ptx.ld(tile.reg() + thread * 4, space="shared::cta", type="u32")
            ptx.st(_at(out, thread, turn), value, space="global")
            if "release" in steps:
                ptx.bar.sync(1, threads=THREADS)
        ptx.ret()
    return k


def exchange(steps: Steps) -> Kernel:
    """Each CTA of a pair writes its own shared memory and reads the other's."""
    with Kernel("exchange", block=(THREADS, 1, 1), cluster=(2, 1, 1)) as k:
        out = k.param("out", "pointer")
        mine = k.dynamic_shared(128).array("mine", 4 * THREADS, 128)
        thread = ptx.mov(special("tid.x"), type="u32")
        rank = ptx.mov(special("cluster_ctarank"), type="u32")
        ptx.st(mine.reg() + thread * 4, thread + rank * 1000, space="shared::cta", type="u32")
        if "cluster barrier" in steps:
            ptx.barrier.cluster.arrive()
            ptx.barrier.cluster.wait()
        other = ptx.mapa(mine.reg() + thread * 4, rank ^ 1, type="u32", space="shared::cluster")
        value = ptx.ld(other, space="shared::cluster", type="u32")
        ptx.st(_at(out, thread + rank * THREADS, 0), value, space="global")
        if "last barrier" in steps:
            ptx.barrier.cluster.arrive()
            ptx.barrier.cluster.wait()
        ptx.ret()
    return k


def neighbours(steps: Steps) -> Kernel:
    """Each thread reads what a thread of another warp wrote."""
    with Kernel("neighbours", block=(THREADS, 1, 1)) as k:
        out = k.param("out", "pointer")
        buffer = k.dynamic_shared(128).array("buffer", 4 * THREADS, 128)
        thread = ptx.mov(special("tid.x"), type="u32")
        ptx.st(buffer.reg() + thread * 4, thread, space="shared::cta", type="u32")
        if "barrier" in steps:
            ptx.bar.sync(0)
        value = ptx.ld(buffer.reg() + (thread ^ 64) * 4, space="shared::cta", type="u32")
        ptx.st(_at(out, thread, 0), value, space="global")
        ptx.ret()
    return k


KERNELS: dict[str, tuple[Callable[[Steps], Kernel], set[str]]] = {
    "bulk_store": (bulk_store, {"proxy fence", "barrier", "wait"}),
    "multiply": (multiply, {"proxy fence", "barrier", "wgmma fence", "wait", "left alone"}),
    "load": (load, {"init fence", "barrier", "wait", "release"}),
    "exchange": (exchange, {"cluster barrier", "last barrier"}),
    "neighbours": (neighbours, {"barrier"}),
}


def launch(name: str, steps: set[str], policy: str, seed: int = 0) -> torch.Tensor:
    build, _ = KERNELS[name]
    kernel = SimulatedKernel(SimulatedLauncher(seed, policy, limit=100_000), build(frozenset(steps)))
    out = torch.full((2 * THREADS,), -1, dtype=torch.int32)
    source = torch.arange(2 * THREADS, dtype=torch.int32)
    args = (source.data_ptr(), THREADS, 2, 4 * THREADS) if name == "load" else ()
    kernel.launch(0, 0, 2 if name == "exchange" else 1, 1, 1, *args, out.data_ptr())
    return out


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", KERNELS)
def test_the_kernels_are_right(name: str, policy: str) -> None:
    out = launch(name, KERNELS[name][1], policy, seed=3)
    thread = torch.arange(THREADS, dtype=torch.int32)
    wanted = {
        "bulk_store": torch.cat([thread, thread + 1000]),
        "multiply": torch.cat([torch.full((THREADS,), 0x41800000, dtype=torch.int32), torch.full((THREADS,), -1)]),
        "load": torch.arange(2 * THREADS),
        "exchange": torch.cat([thread + 1000, thread]),
        "neighbours": torch.cat([thread ^ 64, torch.full((THREADS,), -1)]),
    }[name]
    assert torch.equal(out, wanted.to(torch.int32))


PLANTED = [
    ("bulk_store", "proxy fence", {"missing proxy fence"}),
    ("bulk_store", "barrier", {"race", "copy in flight", "uninitialised shared memory", "missing proxy fence"}),
    ("multiply", "proxy fence", {"missing proxy fence"}),
    ("multiply", "barrier", {"race", "uninitialised shared memory", "missing proxy fence"}),
    ("multiply", "wgmma fence", {"missing wgmma.fence"}),
    ("multiply", "wait", {"accumulator in flight"}),
    ("multiply", "left alone", {"race"}),
    ("load", "init fence", {"missing fence.mbarrier_init"}),
    ("load", "barrier", {"race", "barrier misuse"}),
    ("load", "wait", {"race", "copy in flight", "uninitialised shared memory", "exit with work in flight"}),
    ("load", "release", {"race", "copy in flight", "deadlock"}),
    ("exchange", "cluster barrier", {"CTA not started"}),
    ("neighbours", "barrier", {"race", "uninitialised shared memory"}),
]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name, left_out, kinds", PLANTED, ids=lambda v: v if isinstance(v, str) else "")
def test_leaving_a_step_out_is_found(name: str, left_out: str, kinds: set[str], policy: str) -> None:
    with pytest.raises(SimulationError) as raised:
        launch(name, KERNELS[name][1] - {left_out}, policy, seed=1)
    report = raised.value.report
    assert report.kind in kinds, str(report)
    assert report.place is not None and report.place.python.startswith(__file__), "the kernel's own line"


@pytest.mark.parametrize("policy", ["lazy", "reverse"])
def test_a_source_that_is_overwritten_while_a_store_reads_it(policy: str) -> None:
    with pytest.raises(SimulationError, match="a store that was not waited for still reads it"):
        launch("bulk_store", {"proxy fence", "barrier"}, policy)


def test_shared_memory_of_a_cta_that_has_exited() -> None:
    with pytest.raises(SimulationError, match="after that CTA has exited"):
        for seed in range(20):
            launch("exchange", {"cluster barrier"}, "random", seed)
