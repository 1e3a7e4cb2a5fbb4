"""How fast the simulator is, on one core: warp instructions and multiplications per second, and every kernel's trials.

    python -m benchmarks.bench_simulator [--out DIR]

Everything that the simulator checks is on. Times are those of the process on its processor, the best of several runs.
A wgmma counts as one instruction for each warp: what its multiplications take is measured by a kernel that does little
else, and `other M/s` is the rate of instructions in the time that is left. A record is appended.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

import pyptx_ops
from benchmarks import records
from pyptx_ops.dsl import Kernel, ptx, special
from pyptx_ops.dsl.desc import MatrixDescriptor
from pyptx_ops.simulator import launch_kernel
from pyptx_ops.tables import table
from pyptx_ops.trials import CONFIGS, trials_of
from pyptx_ops.trials.bounds import norm_excess, product_excess, silu_excess
from pyptx_ops.trials.simulated import simulated

RUNS = 5
PRODUCTS = 128  # of wgmma, in the kernel that measures it
FIELDS = ("case", "seconds", "instructions", "rate", "product_rate", "other_rate")
HEADER = ("case", "seconds", "warp instructions", "M/s", "M products/s", "other M/s")
SCHEDULES = (("lazy", 0), ("eager", 0), ("reverse", 0), ("random", 0), ("lazy", 1), ("eager", 1), ("reverse", 1),
             ("random", 1))  # fmt: skip


def best(run: Callable[[], None], runs: int = RUNS) -> float:
    """Seconds of the quickest run, after one that traces and loads the kernel."""
    run()
    times = []
    for _ in range(runs):
        began = time.process_time()
        run()
        times.append(time.process_time() - began)
    return min(times)


def row(case: str, call: Callable[[], object], products: int = 0, product_rate: float = 0.0) -> dict[str, Any]:
    """The best time of a call, its instructions per second, and those that are left without the products' time."""
    executed = 0

    def run() -> None:
        nonlocal executed
        with pyptx_ops.simulate() as machine:
            call()
        executed = machine.executed

    seconds = best(run)
    left = seconds - products / product_rate if products and product_rate else seconds
    return {
        "case": case,
        "seconds": round(seconds, 4),
        "instructions": executed,
        "rate": round(executed / seconds / 1e6, 2),
        "products": products,
        "product_rate": round(products / seconds / 1e6, 1),
        "other_rate": round(executed / left / 1e6, 2),
    }


def multiplications() -> Kernel:
    """One warpgroup that multiplies 64x16 by 16x256 elements of bf16 in shared memory again and again."""
    with Kernel("multiplications", block=(128, 1, 1)) as k:
        smem = k.dynamic_shared(1024)
        tile = smem.array("tile", (64 + 256) * 32, 1024).reg()
        thread = ptx.mov(special("tid.x"), type="u32")
        ones = [ptx.mov(0x3F803F80, type="b32")] * 4
        for start in range(0, (64 + 256) * 32, 128 * 16):
            ptx.st(tile + thread * 16 + start, ones, space="shared", vec="v4", type="b32")
        ptx.fence.proxy.async_(space="shared::cta")
        ptx.bar.sync(0)
        sums = k.regs("f32", 128)
        for total in sums:
            ptx.mov(0.0, type="f32", out=total)
        operand = MatrixDescriptor(leading=16, stride=256, swizzle=32, k_step=0)
        ptx.wgmma.fence()
        for _ in range(PRODUCTS):
            ptx.wgmma.mma_async(
                sums, operand.at(tile), operand.at(tile + 64 * 32), 1, 1, 1, 0, 0, shape="m64n256k16", dtype="f32",
                atype="bf16", btype="bf16",
            )  # fmt: skip
        ptx.wgmma.commit_group()
        ptx.wgmma.wait_group(0)
        ptx.ret()
    return k


def rows() -> Iterator[dict[str, Any]]:
    """A product is mostly tensor cores, the others ordinary instructions. Results are held to their bounds."""
    torch.manual_seed(0)
    kernel, products = multiplications(), PRODUCTS * 64 * 256 * 16
    wgmma = row("wgmma m64n256k16 bf16", lambda: launch_kernel(kernel, (1, 1, 1)), products)
    yield wgmma
    a, b = torch.randn(256, 256).bfloat16(), torch.randn(256, 256).bfloat16().t()
    x = torch.randn(256, 4096).bfloat16()
    with pyptx_ops.simulate():
        assert product_excess(pyptx_ops.gemm(a, b), a, b) <= 1
        assert norm_excess(pyptx_ops.rms_norm(x), x, None) <= 1
        assert silu_excess(pyptx_ops.silu_and_mul(x), *x.chunk(2, -1)) <= 1
    yield row("gemm 256x256x256 bf16", lambda: pyptx_ops.gemm(a, b), 256**3, wgmma["product_rate"] * 1e6)
    yield row("rms_norm 256x4096 bf16", lambda: pyptx_ops.rms_norm(x))
    yield row("silu_and_mul 256x2048 bf16", lambda: pyptx_ops.silu_and_mul(x))


def suite() -> dict[str, Any]:
    """Every kernel under eight schedules, tracing included."""
    began, executed = time.process_time(), 0
    for config in CONFIGS:
        trials = list(trials_of(config))
        for number, (policy, seed) in enumerate(SCHEDULES):
            executed += simulated(trials[number % len(trials)], seed, policy=policy).executed
    seconds = time.process_time() - began
    case = f"{len(CONFIGS)} kernels, {len(SCHEDULES)} schedules each"
    rate = round(executed / seconds / 1e6, 2)
    return {"case": case, "seconds": round(seconds, 1), "instructions": executed, "rate": rate}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_simulator", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="leave out the suite of all kernels")
    parser.add_argument("--out", type=Path, default=records.RESULTS, metavar="DIR", help="for the record (%(default)s)")
    parser.add_argument("--commit", help="of the sources, where they are not in a git checkout")
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    gc.collect()
    found = list(rows()) + ([] if given.quick else [suite()])
    print(table(HEADER, [[one.get(name, "") for name in FIELDS] for one in found]))
    run = records.Run("simulator", records.environment(given.commit), {"runs": RUNS, "cores": 1}, found)
    print(f"record: {records.append(run, given.out)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
