"""Who may touch memory when: between CTAs, warps, lanes, copies, and through atomics and fences of each scope.

Each kernel says how its two sides are ordered; what orders them is right in every order, what does not is a race.
"""

from __future__ import annotations

import pytest
import torch

from pyptx_ops.dsl import Kernel, Reg, ptx, special
from pyptx_ops.dsl.macros import wait_parity
from pyptx_ops.dsl.sim import POLICIES, SimulationError
from pyptx_ops.simulator import SimulatedKernel, SimulatedLauncher

ORDERS = [*((policy, 0) for policy in POLICIES), ("random", 1), ("random", 2)]


def launch(kernel: Kernel, *args: int, grid: int = 1, order: tuple[str, int] = ("lazy", 0), resident: int = 0) -> None:
    launcher = SimulatedLauncher(order[1], order[0], limit=100_000, resident=resident)
    SimulatedKernel(launcher, kernel).launch(0, 0, grid, 1, 1, *args)


def outcome(kernel: Kernel, *args: int, grid: int = 1, order: tuple[str, int] = ("lazy", 0), resident: int = 0) -> str:
    """The kind of the report, or "right"."""
    try:
        launch(kernel, *args, grid=grid, order=order, resident=resident)
    except SimulationError as error:
        assert error.report.place is not None and error.report.place.python.startswith(__file__)
        return error.report.kind
    return "right"


def tid() -> Reg:
    return ptx.mov(special("tid.x"), type="u32")


def flag_in_global(sem: str, scope: str, fences: str = "") -> Kernel:
    """CTA 0 writes data and sets a flag; CTA 1 waits for the flag, reads the data and passes it on."""
    with Kernel("flag", block=(32, 1, 1)) as k:
        data, flag, out = (k.param(name, "pointer") for name in ("data", "flag", "out"))
        stores = {"release": "release", "relaxed": "relaxed"}[sem]
        loads = {"release": "acquire", "relaxed": "relaxed"}[sem]
        cta = ptx.mov(special("ctaid.x"), type="u32")
        with k.if_(tid() == 0):
            with k.if_(cta == 0):
                ptx.st(data, 42, space="global", type="u32")
                if fences:
                    ptx.fence(sem="acq_rel", scope=fences)
                ptx.st(flag, 1, sem=stores, scope=scope, space="global", type="u32")
            with k.else_():
                with k.loop():
                    k.break_(ptx.ld(flag, sem=loads, scope=scope, space="global", type="u32") == 1)
                if fences:
                    ptx.fence(sem="acq_rel", scope=fences)
                ptx.st(out, ptx.ld(data, space="global", type="u32"), space="global")
        ptx.ret()
    return k


@pytest.mark.parametrize("order", ORDERS, ids=str)
@pytest.mark.parametrize("sem, scope, fences, wanted", [
    ("release", "gpu", "", "right"),
    ("release", "cta", "", "race"),
    ("relaxed", "gpu", "", "race"),
    ("relaxed", "gpu", "gpu", "right"),
    ("relaxed", "gpu", "cta", "race"),
    ("relaxed", "cta", "gpu", "race"),
])  # fmt: skip
def test_a_flag_between_ctas(sem: str, scope: str, fences: str, wanted: str, order: tuple[str, int]) -> None:
    memory = torch.zeros(3, dtype=torch.int32)
    address = memory.data_ptr()
    kernel = flag_in_global(sem, scope, fences)
    assert outcome(kernel, address, address + 4, address + 8, grid=2, order=order, resident=2) == wanted
    assert wanted != "right" or memory.tolist() == [42, 1, 42]


def last_of_all(fence: bool) -> Kernel:
    """Every CTA leaves a part; the one that counts last adds the parts."""
    with Kernel("last", block=(64, 1, 1)) as k:
        parts, counter, out = (k.param(name, "pointer") for name in ("parts", "counter", "out"))
        cta = ptx.mov(special("ctaid.x"), type="u32")
        thread = tid()
        slot = k.dynamic_shared(4).array("slot", 4, 4)
        index = thread + cta * 64
        ptx.st(parts + ptx.mul.wide(index, 4), index, space="global")
        ptx.bar.sync(0)
        with k.if_(thread == 0):
            if fence:
                ptx.membar(level="gl")
            ptx.st(slot.reg(), ptx.atom(counter, 1, op="add", space="global", type="u32"), space="shared::cta")
            if fence:
                ptx.membar(level="gl")
        ptx.bar.sync(0)
        with k.if_(ptx.ld(slot.reg(), space="shared::cta", type="u32") == 2), k.if_(thread == 0):
            total = k.var("u32", 0)
            for i in k.range(0, 3 * 64):
                total += ptx.ld(parts + ptx.mul.wide(i, 4), space="global", type="u32")
            ptx.st(out, total, space="global")
        ptx.ret()
    return k


@pytest.mark.parametrize("order", ORDERS, ids=str)
@pytest.mark.parametrize("fence", [True, False])
def test_the_last_cta_adds_the_parts(fence: bool, order: tuple[str, int]) -> None:
    parts, rest = torch.empty(192, dtype=torch.int32), torch.zeros(2, dtype=torch.int32)
    kernel = last_of_all(fence)
    found = outcome(kernel, parts.data_ptr(), rest.data_ptr(), rest.data_ptr() + 4, grid=3, order=order)
    assert found == ("right" if fence else "race")
    assert not fence or rest.tolist() == [3, sum(range(192))]


def two_writers(apart: int, kind: str, same_cta: bool) -> Kernel:
    """Two warps, or CTAs, write `apart` bytes from each other."""
    with Kernel("writers", block=(64 if same_cta else 32, 1, 1)) as k:
        out = k.param("out", "pointer")
        thread = tid()
        who = thread >> 5 if same_cta else ptx.mov(special("ctaid.x"), type="u32")
        with k.if_((thread & 31) == 0):
            ptx.st(out + ptx.mul.wide(who, apart), ptx.cvt(who, type="u16", src="u32"), space="global", type=kind)
        ptx.ret()
    return k


@pytest.mark.parametrize("same_cta", [True, False])
@pytest.mark.parametrize("apart, kind, wanted", [
    (0, "b16", "race"), (2, "b16", "right"), (0, "b8", "race"), (1, "b8", "right"),
])  # fmt: skip
def test_bytes_of_a_word_are_told_apart(apart: int, kind: str, wanted: str, same_cta: bool) -> None:
    out = torch.zeros(4, dtype=torch.uint8)
    grid = 1 if same_cta else 2
    assert outcome(two_writers(apart, kind, same_cta), out.data_ptr(), grid=grid) == wanted


def lanes(sync: str) -> Kernel:
    """Each lane reads what its neighbour wrote, and writes anew."""
    with Kernel("lanes", block=(32, 1, 1)) as k:
        out = k.param("out", "pointer")
        buffer = k.dynamic_shared(128).array("buffer", 128, 128).reg()
        lane = tid()

        def meet(step: str) -> None:
            if step in sync:
                ptx.bar.warp.sync(-1)
            elif "half" in sync:
                with k.if_(lane < 16):
                    ptx.bar.warp.sync(0xFFFF)
                with k.else_():
                    ptx.bar.warp.sync(0xFFFF0000)
            else:
                ptx.elect.sync(-1)  # orders no memory

        ptx.st(buffer + lane * 4, lane, space="shared::cta")
        meet("first")
        neighbour = lane ^ (16 if "far" in sync else 1)
        value = ptx.ld(buffer + neighbour * 4, space="shared::cta", type="u32")
        meet("second")
        ptx.st(buffer + lane * 4, value, space="shared::cta")
        ptx.st(out + ptx.mul.wide(lane, 4), value, space="global")
        ptx.ret()
    return k


@pytest.mark.parametrize("sync, wanted", [
    ("first second", "right"), ("half", "right"), ("far half", "race"), ("first", "race"), ("second", "race"),
])  # fmt: skip
def test_lanes_of_a_warp(sync: str, wanted: str) -> None:
    out = torch.zeros(32, dtype=torch.int32)
    assert outcome(lanes(sync), out.data_ptr()) == wanted
    assert wanted != "right" or out.tolist() == [lane ^ 1 for lane in range(32)]


def one_arrives(sync: bool) -> Kernel:
    """All lanes of a warp write; one of them arrives for all; another warp reads."""
    with Kernel("arrives", block=(64, 1, 1)) as k:
        out = k.param("out", "pointer")
        smem = k.dynamic_shared(128)
        buffer, barrier = smem.array("buffer", 128, 128).reg(), smem.array("barrier", 8, 8).reg()
        thread = tid()
        lane = thread & 31
        with k.if_(thread == 0):
            ptx.mbarrier.init(barrier, 1)
        ptx.bar.sync(0)
        with k.if_(thread < 32):
            ptx.st(buffer + lane * 4, lane, space="shared::cta")
            if sync:
                ptx.bar.warp.sync(-1)
            ptx.mbarrier.arrive(barrier, pred=lane == 0)
        with k.else_():
            wait_parity(barrier, 0)
            value = ptx.ld(buffer + lane * 4, space="shared::cta", type="u32")
            ptx.st(out + ptx.mul.wide(lane, 4), value, space="global")
        ptx.ret()
    return k


@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_one_lane_arrives_for_its_warp(order: tuple[str, int]) -> None:
    out = torch.zeros(32, dtype=torch.int32)
    assert outcome(one_arrives(True), out.data_ptr(), order=order) == "right"
    assert outcome(one_arrives(False), out.data_ptr(), order=order) == "race"


def across_the_cluster(scope: str) -> Kernel:
    """CTA 0 writes into CTA 1 and arrives at its barrier at a scope."""
    order = {"sem": "release", "scope": scope}
    with Kernel("across", block=(32, 1, 1), cluster=(2, 1, 1)) as k:
        out = k.param("out", "pointer")
        smem = k.dynamic_shared(16)
        word, barrier = smem.array("word", 4, 4).reg(), smem.array("barrier", 8, 8).reg()
        rank = ptx.mov(special("cluster_ctarank"), type="u32")
        first = tid() == 0
        with k.if_(first):
            ptx.mbarrier.init(barrier, 1)
            ptx.fence.mbarrier_init()
        ptx.barrier.cluster.arrive()
        ptx.barrier.cluster.wait()
        with k.if_((tid() == 0) & (rank == 0)):
            theirs = ptx.mapa(word, 1, type="u32", space="shared::cluster")
            ptx.st(theirs, 7, space="shared::cluster", type="u32")
            ptx.mbarrier.arrive(
                ptx.mapa(barrier, 1, type="u32", space="shared::cluster"), space="shared::cluster", **order
            )
        with k.if_(rank == 1):
            wait_parity(barrier, 0)
            with k.if_(first):
                ptx.st(out, ptx.ld(word, space="shared::cta", type="u32"), space="global")
        ptx.barrier.cluster.arrive()
        ptx.barrier.cluster.wait()
        ptx.ret()
    return k


@pytest.mark.parametrize("scope, wanted", [("cluster", "right"), ("cta", "race")])
def test_scopes_of_an_arrival(scope: str, wanted: str) -> None:
    out = torch.zeros(1, dtype=torch.int32)
    assert outcome(across_the_cluster(scope), out.data_ptr(), grid=2) == wanted


def copies(what: str) -> Kernel:
    """One thread copies memory through shared memory by bulk copies, and touches it before or after its waits."""
    with Kernel("copies", block=(32, 1, 1)) as k:
        source, out = k.param("source", "pointer"), k.param("out", "pointer")
        smem = k.dynamic_shared(128)
        buffer, barrier = smem.array("buffer", 128, 128).reg(), smem.array("barrier", 8, 8).reg()
        with k.if_(tid() == 0):
            ptx.mbarrier.init(barrier, 1)
            ptx.fence.mbarrier_init()
            if what == "write then load":
                ptx.st(buffer, 5, space="shared::cta", type="u32")
            if what == "write the source":
                ptx.st(source, 5, space="global", type="u32")
            if what == "write the source, fenced":
                ptx.st(source, 5, space="global", type="u32")
                ptx.fence.proxy.async_()
            ptx.mbarrier.arrive.expect_tx(barrier, 128)
            ptx.cp.async_.bulk.load(buffer, source, 128, barrier)
            if what == "overwrite the source":
                ptx.st(source, 5, space="global", type="u32")
            wait_parity(barrier, 0)
            if what == "overwrite the source later":
                ptx.st(source, 5, space="global", type="u32")
            ptx.cp.async_.bulk.store(out, buffer, 128)
            ptx.cp.async_.bulk.commit_group()
            ptx.cp.async_.bulk.wait_group(0, read=what == "read after .read")
            if what.startswith("read"):
                ptx.ld(out, space="global", type="u32")
            ptx.cp.async_.bulk.wait_group(0)
        ptx.ret()
    return k


@pytest.mark.parametrize("order", ORDERS, ids=str)
@pytest.mark.parametrize("what, wanted", [
    ("", "right"),
    ("read", "right"),
    ("read after .read", "race"),
    ("write then load", "missing proxy fence"),
    ("write the source", "missing proxy fence"),
    ("write the source, fenced", "right"),
    ("overwrite the source", "race"),
    ("overwrite the source later", "right"),
])  # fmt: skip
def test_copies_of_global_memory(what: str, wanted: str, order: tuple[str, int]) -> None:
    source, out = torch.arange(32, dtype=torch.int32), torch.zeros(32, dtype=torch.int32)
    assert outcome(copies(what), source.data_ptr(), out.data_ptr(), order=order) == wanted
