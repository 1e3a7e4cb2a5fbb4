"""What a kernel must not do, in kernels of a few lines: the bug is found and placed, without it the kernel is clean."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from pyptx_ops.dsl import Kernel, Reg, TensorMapSpec, ptx
from pyptx_ops.dsl.desc import k_major_128b
from pyptx_ops.dsl.macros import wait_parity
from pyptx_ops.dsl.sim import Report, SimulationError
from pyptx_ops.simulator import launch_kernel
from tests.sim.tools import POLICIES, item, launch, thread_index

THREADS = 128


def found(kernel: Kernel, *args: torch.Tensor | int, others: int = 1, **how: int | str) -> Report:
    """The report of a kernel that has a bug, at one of its own lines and with so many others involved."""
    with pytest.raises(SimulationError) as raised:
        launch(kernel, *args, **how)
    report = raised.value.report
    assert report.place is not None and report.place.python.startswith(__file__), "the kernel's own line"
    assert len(report.others) == others and all(other.python.startswith(__file__) for other in report.others)
    return report


class Multiplication:
    """A kernel around wgmmas of ones, 64 x 8 x 16, with A in registers; what goes on between them is the test's."""

    def __init__(self, body: Callable[[Multiplication], object]):
        with Kernel("multiplication", block=(THREADS, 1, 1)) as self.kernel:
            out = self.kernel.param("out", "pointer")
            tile = self.kernel.dynamic_shared(1024).array("tile", 16 * 128, 1024).reg()
            self.thread = thread_index()
            self.ones = ptx.mov(0x3F803F80, type="u32")
            for i in range(4):
                ptx.st(tile + self.thread * 4 + 512 * i, self.ones, space="shared::cta", type="u32")
            ptx.fence.proxy.async_(space="shared::cta")
            ptx.bar.sync(0)
            self.b = k_major_128b().at(tile)
            self.sums, self.a = self.kernel.regs("f32", 8), self.kernel.regs("b32", 4)
            for register in self.a:
                ptx.mov(self.ones, out=register, type="b32")
            body(self)
            ptx.st(item(out, self.thread, 4), self.sums[0], space="global")
            ptx.ret()

    def multiply(self, accumulate: int = 1, n: int = 8) -> None:
        operands = (self.sums[: n // 2], self.a, self.b, accumulate, 1, 1, 0)
        ptx.wgmma.mma_async.rs(*operands, shape=f"m64n{n}k16", dtype="f32", atype="bf16", btype="bf16")
        ptx.wgmma.commit_group()

    def twice(self, between: Callable[[Multiplication], object], fence: bool = True, wait: bool = True) -> None:
        """Something happens between two wgmmas."""
        ptx.wgmma.fence()
        self.multiply(0)
        if wait:
            ptx.wgmma.wait_group(0)
        between(self)
        if fence:
            ptx.wgmma.fence()
        self.multiply()
        ptx.wgmma.wait_group(0)


def write_sum(m: Multiplication) -> None:
    ptx.mov(1.0, out=m.sums[0], type="f32")


def read_sum(m: Multiplication) -> None:
    ptx.add(m.sums[0], m.sums[1], type="f32")


def write_a(m: Multiplication) -> None:
    ptx.mov(m.ones, out=m.a[2], type="b32")


def read_a(m: Multiplication) -> None:
    ptx.add(m.a[2], 1, type="u32")


ACCESSES = (write_sum, read_sum, write_a, read_a)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("access", ACCESSES, ids=lambda f: f.__name__)
def test_registers_of_wgmma(access: Callable[[Multiplication], None], policy: str) -> None:
    """An access between two wgmmas comes after the wait for the first and before a fence for the second."""
    out = torch.zeros(THREADS)
    launch(Multiplication(lambda m: m.twice(access)).kernel, out, policy=policy)
    assert (out == (17 if access is write_sum else 32)).all()
    report = found(Multiplication(lambda m: m.twice(access, fence=False)).kernel, out, policy=policy)
    did = access.__name__.partition("_")[0].replace("write", "written")
    assert report.kind == "missing wgmma.fence" and f"was {did} after the last wgmma.fence" in report.message
    assert report.others[0].text == f"it was {did}"
    report = found(Multiplication(lambda m: m.twice(access, wait=False)).kernel, out, policy=policy)
    assert report.kind == ("accumulator in flight" if "sum" in access.__name__ else "operand in flight")
    assert report.others[0].ptx.startswith("wgmma.mma_async")


def test_wgmmas_of_two_shapes_on_the_same_registers() -> None:
    def body(m: Multiplication, fence: bool) -> None:
        ptx.wgmma.fence()
        m.multiply(0)
        m.multiply(n=8)
        if fence:
            ptx.wgmma.fence()
        m.multiply(n=16)
        ptx.wgmma.wait_group(0)

    for fence in (True, False):
        kernel = Multiplication(lambda m: [write_all(m), body(m, fence)]).kernel  # noqa: B023
        if fence:
            launch(kernel, torch.zeros(THREADS))
            continue
        report = found(kernel, torch.zeros(THREADS))
        assert report.kind == "missing wgmma.fence" and "wgmmas of two shapes" in report.message


def write_all(m: Multiplication) -> None:
    for register in m.sums:
        ptx.mov(1.0, out=register, type="f32")


def test_the_first_wgmma_needs_a_fence_too() -> None:
    def body(m: Multiplication) -> None:
        m.multiply(0)
        ptx.wgmma.wait_group(0)

    report = found(Multiplication(body).kernel, torch.zeros(THREADS), others=0)
    assert report.kind == "missing wgmma.fence" and "no wgmma.fence at all" in report.message


def passed_on(how: str, ready: bool) -> Kernel:
    """Half of `out` is written by stores, and all of it read in one of several ways."""
    with Kernel("passed_on", block=(32, 1, 1)) as k:
        out, tile = k.param("out", "pointer"), k.tensor_map("tile", TensorMapSpec("u32", (32, 2)))
        smem = k.dynamic_shared(128)
        buffer, full = smem.array("buffer", 256, 128).reg(), smem.array("full", 8, 8).reg()
        thread = thread_index()
        at = item(out, thread, 8)
        ptx.st(at, thread, space="global", type="u32")
        if ready:
            ptx.st(at + 4, thread, space="global", type="u32")
        ptx.st(buffer + thread * 8, [thread, thread], space="shared::cta", vec="v2", type="u32")
        ptx.fence.proxy.async_()
        ptx.bar.warp.sync(-1)
        if how == "load":
            ptx.ld(at, space="global", type="u64")
        elif how == "atomic":
            ptx.red(at + 4, 1, space="global", op="add", type="u32")
        elif how == "cp.async":
            ptx.cp.async_(buffer + thread * 8, at, 8, cache="ca")
            ptx.cp.async_.wait_all()
        else:
            with k.if_(thread == 0):
                if how == "reduction":
                    ptx.cp.reduce.async_.bulk(out, buffer, 256, op="add", type="u32")
                    ptx.cp.async_.bulk.commit_group()
                    ptx.cp.async_.bulk.wait_group(0)
                else:
                    ptx.mbarrier.init(full, 1)
                    ptx.fence.mbarrier_init()
                    ptx.mbarrier.arrive.expect_tx(full, 256)
                    if how == "tensor load":
                        ptx.cp.async_.bulk.tensor.load(buffer, tile, [0, 0], full, dim="2d")
                    else:
                        ptx.cp.async_.bulk.load(buffer, out, 256, full)
                    wait_parity(full, 0)
        ptx.ret()
    return k


@pytest.mark.parametrize("how", ["load", "atomic", "cp.async", "reduction", "bulk load", "tensor load"])
def test_fresh_global_memory_is_written_before_it_is_read(how: str) -> None:
    out = torch.zeros(66, dtype=torch.int32)
    args = (1, 1, 1), out, out[:64].view(2, 32)
    launch_kernel(passed_on(how, True), *args, fresh=[out])
    launch_kernel(passed_on(how, False), *args, fresh=[out[64:]])
    with pytest.raises(SimulationError) as raised:
        launch_kernel(passed_on(how, False), *args, fresh=[out[:64]])
    report = raised.value.report
    assert report.kind == "uninitialised global memory" and "byte 4 of a tensor of 264 bytes" in report.message
    assert report.place is not None and report.place.python.startswith(__file__)


def laps(turns: int, parities: list[int], waits_for: bool) -> Kernel:
    """Warp 0 completes `turns` phases of a barrier, after each of which it may wait for warp 1, which waits at it."""
    with Kernel("laps", block=(64, 1, 1)) as k:
        smem = k.dynamic_shared(16)
        full, empty = smem.array("full", 8, 8).reg(), smem.array("empty", 8, 8).reg()
        thread = thread_index()
        with k.if_(thread == 0):
            ptx.mbarrier.init(full, 1)
            ptx.mbarrier.init(empty, 1)
        ptx.bar.sync(0)
        with k.if_(thread == 0):
            for turn in range(turns):
                ptx.mbarrier.arrive(full)
                if waits_for:
                    wait_parity(empty, turn & 1)
        with k.if_(thread == 32):
            for parity in parities:
                wait_parity(full, parity)
                ptx.mbarrier.arrive(empty)
        ptx.ret()
    return k


@pytest.mark.parametrize("policy", ["lazy", "eager"])
def test_a_waiter_that_is_lapped(policy: str) -> None:
    """Two phases complete before the other warp looks: their parity reads as if none had."""
    launch(laps(4, [0, 1, 0, 1], True), policy=policy)
    launch(laps(1, [0], False), policy=policy)
    report = found(laps(2, [0], False), policy=policy, others=2)
    assert report.kind == "lapped waiter" and "phase 0 of the mbarrier at shared memory offset 0" in report.message
    assert "so is phase 1" in report.message and "phase 2 is open" in report.message
    assert report.others[0].ptx.startswith("mbarrier.arrive") and report.others[1].ptx.startswith("mbarrier.init")


MISUSES: dict[str, tuple[Callable[[Reg], object], str]] = {
    "nothing": (lambda barrier: None, ""),
    "initialised again": (lambda barrier: ptx.mbarrier.init(barrier, 2), "a live mbarrier is initialised again"),
    "not initialised": (lambda barrier: ptx.mbarrier.arrive(barrier + 8), "it was not initialised"),
    "invalid": (lambda barrier: [ptx.mbarrier.inval(barrier), ptx.mbarrier.arrive(barrier)], "it was not initialised"),
    "too many arrivals": (lambda barrier: ptx.mbarrier.arrive(barrier, count=3), "2 of 2 arrivals"),
    "too many bytes": (
        lambda barrier: [ptx.mbarrier.expect_tx(barrier, (1 << 20) - 1) for _ in "12"],
        "byte count of an mbarrier overflows",
    ),
    "data": (lambda barrier: ptx.ld(barrier, space="shared", type="u32"), "offset 0 holds an mbarrier"),
}


@pytest.mark.parametrize("name", MISUSES)
def test_misuse_of_an_mbarrier(name: str) -> None:
    misuse, message = MISUSES[name]
    with Kernel("misuse", block=(32, 1, 1)) as k:
        barrier = k.dynamic_shared(16).array("barrier", 16, 8).reg()
        with k.if_(thread_index() == 0):
            ptx.mbarrier.init(barrier, 2)
            misuse(barrier)
        ptx.ret()
    if not message:
        launch(k)
        return
    report = found(k, others=int(name == "initialised again"))
    assert report.kind == "barrier misuse" and message in report.message


def budgets(steps: list[tuple[int, str]], *, registers: int | None = None) -> Kernel:
    """Warpgroup i of a CTA executes the setmaxnreg of step i."""
    with Kernel("budgets", block=(128 * len(steps), 1, 1), max_registers=registers) as k:
        group = thread_index() >> 7
        for i, (count, action) in enumerate(steps):
            with k.if_(group == i):
                ptx.setmaxnreg(count, action=action)
        ptx.ret()
    return k


@pytest.mark.parametrize("policy", POLICIES)
def test_registers_of_a_cta(policy: str) -> None:
    """Of 128 registers a thread one warpgroup gives back what the other one takes, and no more."""
    launch(budgets([(40, "dec"), (216, "inc")], registers=128), policy=policy)
    report = found(budgets([(40, "dec"), (224, "inc")], registers=128), policy=policy)
    assert report.kind == "deadlock" and report.others[0].ptx.startswith("setmaxnreg.inc")
    assert "waits for 3072 registers more, and the CTA has 2048" in report.others[0].text
    report = found(budgets([(136, "dec"), (40, "dec")], registers=128), others=0, policy=policy)
    assert report.kind == "register budget" and "setmaxnreg.dec to 136, more than the 128" in report.message
    report = found(budgets([(120, "inc"), (40, "dec")], registers=128), others=0, policy=policy)
    assert report.kind == "register budget" and "setmaxnreg.inc to 120, fewer than the 128" in report.message
    launch(budgets([(128, "inc"), (128, "dec")], registers=128), policy=policy)


def test_more_registers_than_a_multiprocessor_has() -> None:
    with pytest.raises(SimulationError, match="register budget: a CTA takes 67584 registers, 264 a thread"):
        launch(budgets([(40, "dec"), (40, "dec")], registers=257))


def test_a_warpgroup_changes_its_registers_together() -> None:
    with Kernel("apart", block=(THREADS, 1, 1)) as k:
        low = thread_index() < 64
        with k.if_(low):
            ptx.setmaxnreg(40, action="dec")
        with k.else_():
            ptx.setmaxnreg(48, action="dec")
        ptx.ret()
    assert found(k).kind == "warpgroup divergence"
