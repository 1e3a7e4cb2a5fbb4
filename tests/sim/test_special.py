"""Special registers, and clusters along every axis."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pyptx_ops.dsl import Kernel, ptx, special
from pyptx_ops.dsl.sim.ptx import PtxError
from pyptx_ops.simulator import SimulatedKernel, SimulatedLauncher
from tests.sim.tools import item, launch, thread_index

GRID, CLUSTER, BLOCK = (4, 6, 3), (2, 3, 1), (8, 4, 3)
NAMES = [f"{name}.{axis}" for name in ("tid", "ctaid", "clusterid", "cluster_ctaid") for axis in "xyz"]
SIZES = [f"{name}.{axis}" for name in ("ntid", "nctaid", "nclusterid", "cluster_nctaid") for axis in "xyz"]


def test_where_a_thread_stands() -> None:
    names = [*NAMES, *SIZES, "cluster_ctarank", "cluster_nctarank", "laneid", "warpid"]
    threads, ctas = int(np.prod(BLOCK)), int(np.prod(GRID))
    with Kernel("where", block=BLOCK, cluster=CLUSTER) as k:
        out = k.param("out", "pointer")
        x, y, z = (ptx.mov(special(f"tid.{axis}"), type="u32") for axis in "xyz")
        a, b, c = (ptx.mov(special(f"ctaid.{axis}"), type="u32") for axis in "xyz")
        cta = a + (b + c * GRID[1]) * GRID[0]
        thread = x + (y + z * BLOCK[1]) * BLOCK[0]
        at = item(out, (cta * threads + thread) * len(names), 4)
        for i, name in enumerate(names):
            ptx.st(at + 4 * i, ptx.mov(special(name), type="u32"), space="global")
        ptx.ret()
    out = torch.full((ctas, threads, len(names)), -1, dtype=torch.int32)
    SimulatedKernel(SimulatedLauncher(1, "random"), k).launch(0, 0, *GRID, out.data_ptr())
    got = dict(zip(names, out.permute(2, 0, 1).numpy(), strict=True))
    cta, thread = np.arange(ctas)[:, None], np.arange(threads)[None, :]
    rank, scale = 0, 1
    for d, axis in enumerate("xyz"):
        stride = int(np.prod(GRID[:d])), int(np.prod(BLOCK[:d]))
        ctaid = cta // stride[0] % GRID[d]
        assert (got[f"ctaid.{axis}"] == ctaid).all() and (got[f"tid.{axis}"] == thread // stride[1] % BLOCK[d]).all()
        assert (got[f"clusterid.{axis}"] == ctaid // CLUSTER[d]).all()
        assert (got[f"cluster_ctaid.{axis}"] == ctaid % CLUSTER[d]).all()
        assert (got[f"ntid.{axis}"] == BLOCK[d]).all() and (got[f"nctaid.{axis}"] == GRID[d]).all()
        assert (got[f"nclusterid.{axis}"] == GRID[d] // CLUSTER[d]).all()
        assert (got[f"cluster_nctaid.{axis}"] == CLUSTER[d]).all()
        rank, scale = rank + ctaid % CLUSTER[d] * scale, scale * CLUSTER[d]
    assert (got["cluster_ctarank"] == rank).all() and (got["cluster_nctarank"] == 6).all()
    assert (got["laneid"] == thread % 32).all() and (got["warpid"] == thread // 32).all()


def test_masks_sizes_and_time() -> None:
    names = ["lanemask_eq", "lanemask_lt", "lanemask_le", "lanemask_gt", "lanemask_ge", "dynamic_smem_size",
             "total_smem_size", "nsmid", "smid", "clock", "globaltimer_lo", "clock"]  # fmt: skip
    with Kernel("masks", block=(32, 1, 1)) as k:
        out = k.param("out", "pointer")
        k.dynamic_shared(16).array("buffer", 240, 16)
        lane = thread_index()
        for i, name in enumerate(names):
            ptx.st(item(out, lane, 4) + 128 * i, ptx.mov(special(name), type="u32"), space="global")
        explicit = ptx.selp(1, 0, ptx.mov(special("is_explicit_cluster"), type="pred"), type="u32")
        ptx.st(item(out, lane, 4) + 128 * 12, explicit, space="global")
        time = ptx.mov(special("clock64"), type="u64") - ptx.mov(special("globaltimer"), type="u64")
        ptx.st(item(out, lane, 4) + 128 * 13, ptx.cvt(time, type="u32", src="u64"), space="global")
        ptx.ret()
    out = torch.full((14, 32), -1, dtype=torch.int32)
    launch(k, out)
    got = out.numpy().view(np.uint32).astype(np.uint64)
    bit = 1 << np.arange(32, dtype=np.uint64)
    full = np.uint64(2**32 - 1)
    masks = [bit, bit - np.uint64(1), bit | (bit - np.uint64(1)), full & ~(bit | (bit - np.uint64(1)))]
    masks.append(full & ~(bit - np.uint64(1)))
    assert (got[:5] == np.stack(masks)).all()
    assert got[5, 0] == 240 and got[6, 0] >= 240 and got[8, 0] < got[7, 0]
    assert (got[9] < got[10]).all() and (got[10] < got[11]).all() and got[12, 0] == 0
    assert out[13].tolist() == [-1] * 32, "one instruction later"


@pytest.mark.parametrize("axis", range(3))
def test_exchange_in_a_cluster_along_an_axis(axis: int) -> None:
    shape = tuple(2 if d == axis else 1 for d in range(3))
    with Kernel("exchange", block=(32, 1, 1), cluster=shape) as k:
        out = k.param("out", "pointer")
        mine = k.dynamic_shared(128).array("mine", 128, 128)
        lane, rank = thread_index(), ptx.mov(special("cluster_ctarank"), type="u32")
        cta = ptx.mov(special(f"ctaid.{'xyz'[axis]}"), type="u32")
        ptx.st(mine.reg() + lane * 4, lane + cta * 100, space="shared::cta", type="u32")
        ptx.barrier.cluster.arrive()
        ptx.barrier.cluster.wait()
        other = ptx.mapa(mine.reg() + lane * 4, rank ^ 1, type="u32", space="shared::cluster")
        value = ptx.ld(other, space="shared::cluster", type="u32")
        ptx.st(item(out, cta * 32 + lane, 4), value, space="global")
        ptx.barrier.cluster.arrive()
        ptx.barrier.cluster.wait()
        ptx.ret()
    out = torch.zeros(4, 32, dtype=torch.int32)
    grid = [4 if d == axis else 1 for d in range(3)]
    SimulatedKernel(SimulatedLauncher(), k).launch(0, 0, *grid, out.data_ptr())
    assert out.tolist() == [[lane + 100 * (cta ^ 1) for lane in range(32)] for cta in range(4)]


def test_registers_of_drivers_and_profilers_are_refused() -> None:
    with Kernel("envreg", block=(32, 1, 1)) as k:
        ptx.mov(special("envreg3"), type="b32")
        ptx.ret()
    with pytest.raises(PtxError, match=r"PTX line \d+: mov.b32: .*envreg3"):
        launch(k)
