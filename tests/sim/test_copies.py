"""Copies other than of tensors: cp.async, st.async and red.async, bulk copies between CTAs, bulk reductions."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pyptx_ops.dsl import Kernel, Reg, ptx, special
from pyptx_ops.dsl.macros import wait_parity
from pyptx_ops.dsl.sim import SimulationError
from tests.sim.test_tensor_copies import NUMPY, combined, numbers
from tests.sim.tools import POLICIES, item, launch, tensor, thread_index

THREADS = 64
Steps = frozenset[str]


def ring(size: int, wait: str, left_out: str = "") -> Kernel:
    """Three groups of cp.async, each read by another thread after its wait; the last zero-filled from its middle."""
    cache = "cg" if size == 16 else "ca"
    vec, kind = {4: (None, "b32"), 8: ("v2", "b32"), 16: ("v4", "b32")}[size]
    with Kernel("ring", block=(THREADS, 1, 1)) as k:
        source, out = k.param("source", "pointer"), k.param("out", "pointer")
        smem = k.dynamic_shared(128)
        buffer, bar = smem.array("buffer", 3 * size * THREADS, 128).reg(), smem.array("bar", 8, 8)
        thread = thread_index()
        with k.if_(thread == 0):
            ptx.mbarrier.init(bar, THREADS)
        ptx.bar.sync(0)
        for i in range(3):
            place, origin = buffer + (thread + THREADS * i) * size, item(source, thread, size) + size * THREADS * i
            more = {} if i < 2 else {"src_size": size // 2}
            if i == 1:
                more = {"ignore": thread >= THREADS // 2}
            ptx.cp.async_(place, origin, size, cache=cache, **more)
            if wait != "barrier":
                ptx.cp.async_.commit_group()
        if wait == "barrier":
            ptx.cp.async_.mbarrier.arrive(bar, noinc=True)
            if left_out != "wait":
                wait_parity(bar.reg(), 0)
        for i in range(3):
            if wait == "group" and left_out != "wait":
                ptx.cp.async_.wait_group(2 - i)
            elif wait == "all" and i == 0:
                ptx.cp.async_.wait_all()
            if wait != "barrier" and left_out != "barrier":
                ptx.bar.sync(0)
            other = (thread ^ 33) + THREADS * i
            value = ptx.ld(buffer + other * size, space="shared::cta", vec=vec, type=kind)
            ptx.st(item(out, other, size), value, space="global", vec=vec, type=kind)
        ptx.ret()
    return k


def run_ring(size: int, wait: str, policy: str, left_out: str = "") -> None:
    source = torch.randint(1, 256, (3, THREADS, size), dtype=torch.uint8)
    out = torch.zeros_like(source)
    launch(ring(size, wait, left_out), source, out, policy=policy, seed=3)
    wanted = source.clone()
    wanted[1, THREADS // 2 :] = 0
    wanted[2, :, size // 2 :] = 0
    assert torch.equal(out, wanted)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("wait", ["group", "all", "barrier"])
@pytest.mark.parametrize("size", [4, 8, 16])
def test_cp_async(size: int, wait: str, policy: str) -> None:
    run_ring(size, wait, policy)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("wait, left_out", [("group", "wait"), ("group", "barrier"), ("barrier", "wait")])
def test_cp_async_without_its_wait(wait: str, left_out: str, policy: str) -> None:
    with pytest.raises(SimulationError) as raised:
        run_ring(16, wait, policy, left_out)
    assert raised.value.report.kind in ("race", "copy in flight", "uninitialised shared memory")


def test_cp_async_arrives_for_itself() -> None:
    """Without noinc an arrival raises the count first: a barrier of one thread more waits for that one."""
    with Kernel("arrive", block=(32, 1, 1)) as k:
        source, out = k.param("source", "pointer"), k.param("out", "pointer")
        smem = k.dynamic_shared(128)
        buffer, bar = smem.array("buffer", 128, 128).reg(), smem.array("bar", 8, 8)
        lane = thread_index()
        with k.if_(lane == 0):
            ptx.mbarrier.init(bar, 1)
        ptx.bar.warp.sync(0xFFFFFFFF)
        ptx.cp.async_(buffer + lane * 4, item(source, lane, 4), 4, cache="ca")
        ptx.cp.async_.mbarrier.arrive(bar)
        ptx.bar.warp.sync(0xFFFFFFFF)
        early = ptx.selp(1, 0, ptx.mbarrier.test_wait.parity(bar, 0), type="u32")
        ptx.bar.warp.sync(0xFFFFFFFF)
        with k.if_(lane == 0):
            ptx.mbarrier.arrive(bar)
        ptx.bar.warp.sync(0xFFFFFFFF)
        wait_parity(bar.reg(), 0)
        value = ptx.ld(buffer + (lane ^ 1) * 4, space="shared::cta", type="u32")
        ptx.st(item(out, lane, 4), value * 2 + early, space="global")
        ptx.ret()
    source, out = torch.arange(32, dtype=torch.int32), torch.zeros(32, dtype=torch.int32)
    for policy in POLICIES:
        launch(k, source, out, policy=policy)
        assert torch.equal(out, (source ^ 1) * 2)


def test_cp_async_of_a_misaligned_source() -> None:
    with Kernel("misaligned", block=(32, 1, 1)) as k:
        source = k.param("source", "pointer")
        ptx.cp.async_(k.dynamic_shared(128).array("buffer", 128, 128).reg(), source + 4, 8, cache="ca")
        ptx.ret()
    with pytest.raises(SimulationError, match="cp.async of 8 bytes needs addresses"):
        launch(k, torch.zeros(32))


KINDS = ("st.async", "st.async.v4", "red.async", "bulk", "bulk.reduce")


def exchange(kind: str, steps: Steps, dtype: str = "u32", op: str = "add") -> Kernel:
    """Each CTA of a pair sends 32 words to the other one."""
    each = {"st.async.v4": 16}.get(kind, 8 if dtype.endswith("64") else 4)
    total = each * 32
    with Kernel("exchange", block=(32, 1, 1), cluster=(2, 1, 1)) as k:
        source, start, out = (k.param(name, "pointer") for name in ("source", "start", "out"))
        smem = k.dynamic_shared(128)
        mine, there, bar = smem.array("mine", total, 128), smem.array("there", total, 128), smem.array("bar", 8, 8)
        lane, rank = thread_index(), ptx.mov(special("cluster_ctarank"), type="u32")
        index = lane + rank * 32
        width = {"vec": "v4", "type": "u32"} if each == 16 else {"type": "b64" if each == 8 else "u32"}
        value = ptx.ld(item(source, index, each), space="global", **width)
        ptx.st(mine.reg() + lane * each, value, space="shared::cta", **width)
        if kind in ("red.async", "bulk.reduce"):
            initial = ptx.ld(item(start, index, each), space="global", **width)
            ptx.st(there.reg() + lane * each, initial, space="shared::cta", **width)
        with k.if_(lane == 0):
            ptx.mbarrier.init(bar, 1)
            ptx.fence.mbarrier_init()
            ptx.mbarrier.arrive.expect_tx(bar.reg(), total)
        if "proxy fence" in steps:
            ptx.fence.proxy.async_(space="shared::cta")
        ptx.barrier.cluster.arrive()
        ptx.barrier.cluster.wait()

        def peer(address: Reg) -> Reg:
            return ptx.mapa(address, rank ^ 1, type="u32", space="shared::cluster")

        if kind.startswith("st.async"):
            ptx.st.async_(peer(there.reg() + lane * each), value, peer(bar.reg()), **width)
        elif kind == "red.async":
            ptx.red.async_(peer(there.reg() + lane * each), value, peer(bar.reg()), op=op, type=dtype)
        else:
            with k.if_(lane == 0):
                operands = (peer(there.reg()), mine.reg(), total, peer(bar.reg()))
                if kind == "bulk":
                    ptx.cp.async_.bulk.shared(*operands)
                else:
                    ptx.cp.reduce.async_.bulk.shared(*operands, op=op, type=dtype)
        if "wait" in steps:
            wait_parity(bar.reg(), 0)
        got = ptx.ld(there.reg() + lane * each, space="shared::cta", **width)
        ptx.st(item(out, index, each), got, space="global", **width)
        ptx.barrier.cluster.arrive()
        ptx.barrier.cluster.wait()
        ptx.ret()
    return k


ALL_STEPS = frozenset({"proxy fence", "wait"})


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("kind", KINDS)
def test_words_to_the_other_cta(kind: str, policy: str) -> None:
    words = 4 if kind == "st.async.v4" else 1
    source, start = (torch.randint(0, 2**30, (2, 32 * words), dtype=torch.int32) for _ in "ab")
    out = torch.zeros_like(source)
    launch(exchange(kind, ALL_STEPS), source, start, out, grid=2, policy=policy, seed=1)
    assert torch.equal(out, source.flip(0) + (start if "red" in kind else 0))


@pytest.mark.parametrize("kind", ["red.async", "bulk.reduce"])
@pytest.mark.parametrize("op, dtype", [("add", "u64"), ("min", "s32"), ("max", "u32"), ("inc", "u32"), ("dec", "u32"),
                                       ("and", "b32"), ("or", "b32"), ("xor", "b32")])  # fmt: skip
def test_reductions_in_the_other_cta(kind: str, op: str, dtype: str, seed: int) -> None:
    numpy = np.dtype({"u64": np.uint64, "s32": np.int32}.get(dtype, np.uint32))
    random = np.random.default_rng(seed)
    source, start = (numbers(random, numpy, 64, op in ("inc", "dec")).reshape(2, 32) for _ in "ab")
    out = torch.zeros(64 * numpy.itemsize, dtype=torch.uint8)
    kernel = exchange(kind, ALL_STEPS, dtype, op)
    launch(kernel, tensor(source), tensor(start), out, grid=2, policy=POLICIES[seed % 4])
    assert (out.numpy().view(numpy).reshape(2, 32) == combined(op, start, source[::-1])).all()


LEFT_OUT = [(kind, "wait") for kind in KINDS] + [("bulk", "proxy fence"), ("bulk.reduce", "proxy fence")]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("kind, step", LEFT_OUT)
def test_a_step_left_out_between_ctas(kind: str, step: str, policy: str) -> None:
    words = 4 if kind == "st.async.v4" else 1
    memory = torch.zeros(2, 32 * words, dtype=torch.int32)
    with pytest.raises(SimulationError) as raised:
        launch(exchange(kind, ALL_STEPS - {step}), memory, memory, memory.clone(), grid=2, policy=policy, seed=1)
    kinds = (
        ("missing proxy fence",) if step == "proxy fence" else ("race", "copy in flight", "uninitialised shared memory")
    )
    assert raised.value.report.kind in kinds, str(raised.value)


def test_an_mbarrier_of_another_cta() -> None:
    with Kernel("elsewhere", block=(32, 1, 1), cluster=(2, 1, 1)) as k:
        smem = k.dynamic_shared(128)
        place, bar = smem.array("place", 128, 128).reg(), smem.array("bar", 8, 8).reg()
        ptx.barrier.cluster.arrive()
        ptx.barrier.cluster.wait()
        ptx.st.async_(ptx.mapa(place, 1, type="u32"), 1, ptx.mapa(bar, 0, type="u32"), type="u32")
        ptx.ret()
    with pytest.raises(SimulationError, match="lie in different CTAs"):
        launch(k, grid=2)


REDUCTIONS = {
    "add": ("u32", "s32", "u64", "f32", "f64", "f16"), "min": ("u32", "s32", "s64", "f16"), "max": ("u64", "f16"),
    "inc": ("u32",), "dec": ("u32",), "and": ("b32", "b64"), "or": ("b64",), "xor": ("b32",),
}  # fmt: skip


@pytest.mark.parametrize("op, dtype", [(op, dtype) for op, kinds in REDUCTIONS.items() for dtype in kinds])
def test_bulk_reductions_into_global_memory(op: str, dtype: str, seed: int) -> None:
    """Two CTAs reduce into one place without any order between them."""
    kind = np.dtype(NUMPY.get(dtype.replace("s", "i").replace("b", "u"), np.float16))
    random = np.random.default_rng(seed)
    count = 128 // kind.itemsize
    source = numbers(random, kind, count, op in ("inc", "dec"))
    start = numbers(random, kind, count, op in ("inc", "dec"))
    more = {"noftz": True} if dtype == "f16" and op == "add" else {}
    with Kernel("reduce", block=(32, 1, 1)) as k:
        origin, target = k.param("origin", "pointer"), k.param("target", "pointer")
        buffer = k.dynamic_shared(128).array("buffer", 128, 128).reg()
        lane = thread_index()
        ptx.st(
            buffer + lane * 4,
            ptx.ld(item(origin, lane, 4), space="global", type="b32"),
            space="shared::cta",
            type="b32",
        )
        ptx.fence.proxy.async_(space="shared::cta")
        ptx.bar.warp.sync(0xFFFFFFFF)
        with k.if_(lane == 0):
            ptx.cp.async_.bulk.prefetch(target, 128)
            ptx.cp.reduce.async_.bulk(target, buffer, 128, op=op, type=dtype, **more)
            ptx.cp.async_.bulk.commit_group()
            ptx.cp.async_.bulk.wait_group(0)
        ptx.ret()
    result = tensor(start)
    launch(k, tensor(source), result, grid=2, policy=POLICIES[seed % 4], seed=2)
    wanted = combined(op, combined(op, start, source), source)
    assert (result.numpy().view(kind) == wanted).all()
