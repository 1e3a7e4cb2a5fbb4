"""The interpreter itself: what it refuses, and that threads part and meet again."""

from __future__ import annotations

import numpy as np
import pytest

from pyptx_ops.dsl import Kernel, Reg, ptx, special
from tests.kernels.interpreter import Memory, run


def launch(kernel: Kernel, data: np.ndarray, grid: int = 1) -> None:
    memory = Memory()
    run(kernel, memory, (grid, 1), (memory.add(data),))


def thread() -> Reg:
    return ptx.mov(special("tid.x"), type="u32")


def test_threads_part_and_meet() -> None:
    """Each thread counts to its own number, then passes the count to its neighbour."""
    with Kernel("count", block=(64, 1, 1)) as k:
        data = k.param("data", "pointer")
        index, total = thread(), k.var("u32", 0)
        for _ in k.range(index):
            total += 1
        with k.if_((index & 1) == 0):
            total += 100
        with k.else_():
            total += 200
        swapped = ptx.shfl(total, 1, 31, 0xFFFFFFFF, mode="bfly")
        ptx.st(data + ptx.mul.wide(index, 4), swapped, space="global", type="b32")
        ptx.ret()
    data = np.zeros(64, np.uint32)
    launch(k, data)
    assert data.tolist() == [i + (200 if i % 2 else 100) for i in np.arange(64) ^ 1]


def test_shared_memory_is_each_block_s_own() -> None:
    """Every block of a cluster leaves its rank with its right neighbour."""
    with Kernel("ring", block=(32, 1, 1), cluster=(4, 1, 1)) as k:
        data = k.param("data", "pointer")
        slot = ptx.mov(k.shared_array("slot", 4), type="u32")
        rank = ptx.mov(special("cluster_ctarank"), type="u32")
        first = thread() == 0
        ptx.st(ptx.mapa(slot, (rank + 1) & 3, type="u32"), rank, space="shared::cluster", type="u32", pred=first)
        ptx.barrier.cluster.arrive()
        ptx.barrier.cluster.wait()
        value = ptx.ld(slot, space="shared", type="u32")
        ptx.st(data + ptx.mul.wide(rank, 4), value, space="global", pred=first)
        ptx.ret()
    data = np.zeros(4, np.uint32)
    launch(k, data, grid=4)
    assert data.tolist() == [3, 0, 1, 2]


@pytest.mark.parametrize(("offset", "message"), [(32, "out of bounds"), (-4, "out of bounds"), (2, "no multiple of 4")])
def test_refuses_addresses(offset: int, message: str) -> None:
    with Kernel("address", block=(32, 1, 1)) as k:
        ptx.ld(k.param("data", "pointer").at(offset), space="global", type="u32")
        ptx.ret()
    with pytest.raises(AssertionError, match=message):
        launch(k, np.zeros(8, np.uint32))


def test_refuses_registers_that_hold_nothing() -> None:
    with Kernel("unwritten", block=(32, 1, 1)) as k:
        k.param("data", "pointer")
        k.reg("u32") + 1
        ptx.ret()
    with pytest.raises(AssertionError, match="read before it is written"):
        launch(k, np.zeros(8, np.uint32))


def test_refuses_shuffles_of_half_a_warp() -> None:
    with Kernel("half", block=(32, 1, 1)) as k:
        k.param("data", "pointer")
        index = thread()
        with k.if_(index < 16):
            ptx.shfl(index, 1, 31, 0xFFFFFFFF, mode="bfly")
        ptx.ret()
    with pytest.raises(AssertionError, match="a lane is elsewhere"):
        launch(k, np.zeros(8, np.uint32))


def test_sees_deadlocks() -> None:
    with Kernel("stuck", block=(32, 1, 1), cluster=(2, 1, 1)) as k:
        k.param("data", "pointer")
        with k.if_(thread() == 0):
            ptx.bar.sync(0)
        ptx.barrier.cluster.wait()
        ptx.bar.sync(0)
        ptx.ret()
    with pytest.raises(AssertionError, match="deadlock"):
        launch(k, np.zeros(8, np.uint32), grid=2)
