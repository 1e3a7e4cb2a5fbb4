"""How many instructions a second one core traces, and prints: it should not depend on how many there are.

python -m benchmarks.bench_trace, or pytest benchmarks/bench_trace.py --benchmark-enable
"""

from __future__ import annotations

import sys
import time

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from pyptx_ops.dsl import Kernel, ptx, special
from pyptx_ops.tables import table

SIZES = (10_000, 100_000)
ROUNDS = 5
PER_TURN = 10


def trace(instructions: int) -> Kernel:
    """A kernel of about so many instructions, half of them operators: arithmetic, memory, comparisons, a guard."""
    with Kernel("bench") as k:
        address = k.param("data", "pointer") + ptx.mul.wide(ptx.mov(special("tid.x"), type="u32"), 4)
        index, total = k.var("u32", 0), k.var("f32", 0.0)
        for _ in range(instructions // PER_TURN):
            value = ptx.ld(address, space="global", type="f32")
            product = ptx.fma(value, 2.0, value, rnd="rn") * value
            total += product
            inside = index < 100
            chosen = ptx.selp(product, total, inside)
            index += 1
            address = address + 4
            ptx.st(address, chosen, space="global", pred=inside)
            ptx.max(index, 7)
    return k


@pytest.mark.benchmark(timer=time.process_time, group="trace")
@pytest.mark.parametrize("size", SIZES)
def test_trace(benchmark: BenchmarkFixture, size: int) -> None:
    kernel = benchmark.pedantic(trace, (size,), rounds=ROUNDS)
    if benchmark.enabled:
        benchmark.extra_info["instructions_per_second"] = len(kernel) / benchmark.stats.stats.min


@pytest.mark.benchmark(timer=time.process_time, group="print")
@pytest.mark.parametrize("size", SIZES)
def test_print(benchmark: BenchmarkFixture, size: int) -> None:
    kernel = trace(size)
    benchmark.pedantic(kernel.ptx, rounds=ROUNDS)
    if benchmark.enabled:
        benchmark.extra_info["instructions_per_second"] = len(kernel) / benchmark.stats.stats.min


def main() -> int:
    rows = []
    for size in SIZES:
        best = [float("inf")] * 2
        for _ in range(ROUNDS):
            began = time.process_time()
            kernel = trace(size)
            traced = time.process_time()
            kernel.ptx()
            best = [min(best[0], traced - began), min(best[1], time.process_time() - traced)]
        rows.append([str(len(kernel)), *(f"{len(kernel) / seconds:.0f}" for seconds in best)])
    print(table(("instructions", "traced per second", "printed per second"), rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
