"""Lanes of a warp that have diverged: in step, or taking turns; and what several lanes do by one instruction."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from pyptx_ops.dsl import Kernel, Reg, ptx
from pyptx_ops.dsl.macros import wait_parity
from pyptx_ops.dsl.sim import Report, SimulationError
from tests.sim.tools import POLICIES, item, launch, thread_index

LANES = 32


def found(kernel: Kernel, *args: torch.Tensor | int, **how: int) -> Report:
    with pytest.raises(SimulationError) as raised:
        launch(kernel, *args, limit=20_000, **how)
    report = raised.value.report
    assert report.place is not None and report.place.python.startswith(__file__), "the kernel's own line"
    return report


def counted(locked: bool) -> Kernel:
    """Each lane adds one to a word, by a load and a store, while it holds the lock; and notes what it found."""
    with Kernel("counted", block=(LANES, 1, 1)) as k:
        lock, word, out = (k.param(name, "pointer") for name in ("lock", "word", "out"))
        lane = thread_index()
        if locked:
            with k.loop():
                k.break_(ptx.atom.cas(lock, 0, 1, sem="acquire", scope="gpu", space="global", type="b32") == 0)
        else:
            with k.if_(lane & 1 == 0):  # only that lanes have diverged
                ptx.st(item(out, lane, 4), 0, space="global", type="u32")
        value = ptx.ld(word, space="global", type="u32")
        ptx.st(word, value + 1, space="global")
        ptx.st(item(out, lane, 4), value, space="global")
        if locked:
            ptx.atom(lock, 0, op="exch", sem="release", scope="gpu", space="global", type="b32")
        ptx.ret()
    return k


def test_a_lock_between_the_lanes_of_a_warp() -> None:
    """In step the lane that holds it stands still while the others ask for it."""
    turns = set()
    for seed in range(6):
        lock, word, out = torch.zeros(1, dtype=torch.int32), torch.zeros(1, dtype=torch.int32), torch.zeros(LANES)
        launch(counted(True), lock, word, out.view(torch.int32), seed=seed, interleave=True)
        assert lock.item() == 0 and word.item() == LANES
        order = tuple(out.view(torch.int32).tolist())
        assert sorted(order) == list(range(LANES))
        turns.add(order)
    assert len(turns) > 1, "who comes first is open"
    report = found(counted(True), torch.zeros(1), torch.zeros(1), torch.zeros(LANES))
    assert report.kind == "limit" and "unless the run interleaves lanes" in report.message


@pytest.mark.parametrize("interleave", [False, True])
def test_without_the_lock_lanes_race(interleave: bool) -> None:
    report = found(counted(False), torch.zeros(1), torch.zeros(1), torch.zeros(LANES), interleave=interleave)
    assert report.kind == "race" and "lane" in str(report)


def last_of_two(atomic: bool) -> Kernel:
    """Two halves of a warp write one word."""
    with Kernel("last", block=(LANES, 1, 1)) as k:
        word = k.param("word", "pointer")
        lane = thread_index()

        def write(value: int) -> None:
            if atomic:
                ptx.atom(word, value, op="exch", space="global", type="b32")
            else:
                ptx.st(word, value, space="global", type="u32")

        with k.if_(lane < 16):
            write(1)
        with k.else_():
            write(2)
        ptx.ret()
    return k


@pytest.mark.parametrize("policy", POLICIES)
def test_what_depends_on_the_order_of_lanes(policy: str) -> None:
    """Stores race; atomics do not, and what they leave differs from one order to another."""
    for interleave in (False, True):
        report = found(last_of_two(False), torch.zeros(1), policy=policy, interleave=interleave)
        assert report.kind == "race" and "another lane of the warp wrote it" in str(report)
    left = set()
    for seed in range(8):
        word = torch.zeros(1, dtype=torch.int32)
        launch(last_of_two(True), word, policy=policy, seed=seed, interleave=True)
        left.add(word.item())
    assert left == {1, 2}


def meeting(where: str) -> Kernel:
    """Lanes that a branch has parted come together at an instruction of the whole warp, and go on."""
    with Kernel("meeting", block=(128, 1, 1), max_registers=128) as k:
        out = k.param("out", "pointer")
        smem = k.dynamic_shared(128)
        tile, full = smem.array("tile", 512, 128).reg(), smem.array("full", 8, 8).reg()
        thread = thread_index()
        total = k.var("u32", 0)
        ptx.st(tile + thread * 4, thread, space="shared::cta")
        with k.if_(thread == 0):
            ptx.mbarrier.init(full, 1)
        ptx.bar.sync(0)
        with k.if_(thread & 3 == 1):
            for i in k.range(0, (thread & 31)):
                total += i
        with k.if_(thread & 31 == 7), k.if_(thread == 7):
            ptx.mbarrier.arrive(full)
        if where == "setmaxnreg":
            ptx.setmaxnreg(120, action="dec")
        elif where == "ldmatrix":
            ptx.ldmatrix(tile + (thread & 31) * 16, num="x4")
        elif where == "shfl":
            total += ptx.shfl(total, 0, 31, -1, mode="idx")
        elif where == "bar.warp.sync":
            ptx.bar.warp.sync(-1)
        elif where == "bar.sync":
            ptx.bar.sync(1, threads=128)
        else:
            ptx.vote(thread == 0, -1, mode="any")
        ptx.st(item(out, thread, 4), total, space="global")
        ptx.ret()
    return k


@pytest.mark.parametrize("policy", ["lazy", "random"])
@pytest.mark.parametrize("where", ["setmaxnreg", "ldmatrix", "shfl", "bar.warp.sync", "bar.sync", "vote"])
def test_lanes_come_together_again(where: str, policy: str) -> None:
    index = torch.arange(128) % 32
    wanted = torch.where(index % 4 == 1, index * (index - 1) // 2, 0)
    for interleave in (False, True):
        out = torch.full((128,), -1, dtype=torch.int32)
        launch(meeting(where), out, policy=policy, seed=2, interleave=interleave)
        assert torch.equal(out.long(), wanted)


def part_of_a_warp(how: str) -> Kernel:
    with Kernel("part", block=(LANES, 1, 1)) as k:
        tile = k.dynamic_shared(128).array("tile", 512, 128).reg()
        lane = thread_index()
        ptx.st(tile + lane * 4, lane, space="shared::cta")
        ptx.bar.warp.sync(-1)
        if how == "guard":
            ptx.movmatrix(lane.as_type("b32"), pred=lane < 16)
        else:
            with k.if_(lane < 16):
                ptx.movmatrix(lane.as_type("b32"))
            if how == "never":
                with k.else_():
                    ptx.bar.warp.sync(-1)
        ptx.ret()
    return k


@pytest.mark.parametrize("interleave", [False, True])
@pytest.mark.parametrize("how, kind", [
    ("guard", "warp divergence"), ("branch", "warp divergence"), ("never", "deadlock"),
])  # fmt: skip
def test_an_instruction_of_the_whole_warp_by_part_of_it(how: str, kind: str, interleave: bool) -> None:
    report = found(part_of_a_warp(how), interleave=interleave)
    assert report.kind == kind and (report.place.ptx + str(report.others)).count("movmatrix")


@pytest.mark.parametrize("policy", POLICIES)
def test_lanes_that_wait_for_two_barriers_at_once(policy: str) -> None:
    """Lane 0 waits for a phase that is complete, and lets lane 1 go on, which waits by the same instruction."""
    with Kernel("two", block=(LANES, 1, 1)) as k:
        out = k.param("out", "pointer")
        barriers = k.dynamic_shared(16).array("barriers", 16, 8).reg()
        lane = thread_index()
        with k.if_(lane == 0):
            for i in range(2):
                ptx.mbarrier.init(barriers + 8 * i, 1)
            ptx.mbarrier.arrive(barriers)
        ptx.bar.warp.sync(-1)
        with k.if_(lane < 2):
            wait_parity(barriers + lane * 8, 0)
            with k.if_(lane == 0):
                ptx.st(out, 5, space="global", type="u32")
                ptx.mbarrier.arrive(barriers + 8)
            with k.else_():
                ptx.st(out + 4, ptx.ld(out, space="global", type="u32"), space="global")
        ptx.ret()
    for interleave in (False, True):
        out = torch.zeros(2, dtype=torch.int32)
        launch(k, out, policy=policy, interleave=interleave)
        assert out.tolist() == [5, 5]


Store = Callable[[Reg, Reg, Reg], object]  # of a lane: its place in shared memory, in global memory, the lane
STORES: dict[str, Store] = {
    "shared": lambda shared, place, lane: ptx.st(shared, lane, space="shared::cta"),
    "global": lambda shared, place, lane: ptx.st(place, lane, space="global"),
    "generic": lambda shared, place, lane: ptx.st(place, lane),
    "generic shared": lambda shared, place, lane: ptx.st(
        ptx.cvta(ptx.cvt(shared, type="u64", src="u32"), space="shared"), lane
    ),
    "vector": lambda shared, place, lane: ptx.st(place, [lane & 1, lane], vec="v2", space="global"),
    "byte": lambda shared, place, lane: ptx.st(place, ptx.cvt(lane, type="u16", src="u32"), type="b8", space="global"),
}


def stores(store: Store, apart: int, shifted: int) -> Kernel:
    """Lane l writes l >> shifted to place (l % apart) * 8."""
    with Kernel("stores", block=(LANES, 1, 1)) as k:
        out = k.param("out", "pointer")
        buffer = k.dynamic_shared(128).array("buffer", 8 * LANES, 128).reg()
        lane = thread_index()
        slot = (lane ^ 5) & (apart - 1)
        store(buffer + slot * 8, item(out, slot, 8), lane >> shifted)
        ptx.ret()
    return k


@pytest.mark.parametrize("name", STORES)
def test_lanes_that_store_to_one_place_at_once(name: str) -> None:
    """Of different values one stays, and which is open; the same value is as good as one store."""
    out = torch.zeros(LANES, dtype=torch.int64)
    launch(stores(STORES[name], LANES, 0), out)
    launch(stores(STORES[name], 1, 5), out)
    report = found(stores(STORES[name], 16, 0), out)
    assert report.kind == "race" and "by lanes 0 and 16 of the warp at once" in report.message
    assert "shared memory offset 40" in report.message or "byte 40 of a tensor of 256 bytes" in report.message
    assert report.where.endswith("lane 16") and report.others[0].python == report.place.python


def test_atomics_and_strong_stores_of_lanes_do_not_collide() -> None:
    with Kernel("atomics", block=(LANES, 1, 1)) as k:
        out = k.param("out", "pointer")
        lane = thread_index()
        ptx.red(out, lane, op="add", space="global", type="u32")
        ptx.atom(out, lane, op="exch", space="global", type="b32")
        ptx.st(out + 8, lane, sem="relaxed", scope="gpu", space="global")
        ptx.ret()
    out = torch.zeros(4, dtype=torch.int32)
    launch(k, out)
    assert out[0] in range(LANES) and out[2] in range(LANES)


@pytest.mark.parametrize("trans", [False, True])
def test_rows_that_stmatrix_stores_to_one_place(trans: bool) -> None:
    def kernel(value: str, apart: bool) -> Kernel:
        with Kernel("rows", block=(LANES, 1, 1)) as k:
            tile = k.dynamic_shared(128).array("tile", 256, 128).reg()
            lane = thread_index()
            row = (lane & 7) if apart else (lane & 7) >> 1
            values = {"alike": ptx.mov(0x70007, type="b32"), "other": (lane * 3).as_type("b32")}[value]
            ptx.stmatrix(tile + row * 16, [values], num="x1", trans=trans)
            ptx.ret()
        return k

    launch(kernel("other", True))
    launch(kernel("alike", False))
    report = found(kernel("other", False))
    assert report.kind == "race" and "by lanes 0 and 1 of the warp at once" in report.message


@pytest.mark.parametrize("reduction", [False, True])
@pytest.mark.parametrize("apart", [128, 64])
def test_a_copy_whose_source_overlaps_its_destination(apart: int, reduction: bool) -> None:
    """Within a CTA: 128 bytes from one place to another."""
    with Kernel("overlap", block=(LANES, 1, 1)) as k:
        smem = k.dynamic_shared(128)
        buffer, full = smem.array("buffer", 256, 128).reg(), smem.array("full", 8, 8).reg()
        lane = thread_index()
        ptx.st(buffer + lane * 8, [lane, lane], space="shared::cta", vec="v2", type="u32")
        ptx.fence.proxy.async_()
        ptx.bar.warp.sync(-1)
        with k.if_(lane == 0):
            ptx.mbarrier.init(full, 1)
            ptx.fence.mbarrier_init()
            ptx.mbarrier.arrive.expect_tx(full, 128)
            if reduction:
                ptx.cp.reduce.async_.bulk.shared(buffer + apart, buffer, 128, full, op="add", type="u32")
            else:
                ptx.cp.async_.bulk.shared(buffer + apart, buffer, 128, full)
            with k.loop():
                k.break_(ptx.mbarrier.try_wait.parity(full, 0))
        ptx.ret()
    if apart == 128:
        launch(k)
        return
    report = found(k)
    assert report.kind in ("copy in flight", "race"), str(report)
