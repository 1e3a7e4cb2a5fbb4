"""How many instructions a second one core traces, and prints: it should not depend on how many there are.

python -m benchmarks.bench_trace [--out DIR], which appends a record, or
pytest benchmarks/bench_trace.py --benchmark-enable
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks import records
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


def measured(size: int, rounds: int) -> dict[str, Any]:
    """Instructions per second of processor time, the best of several rounds."""
    tracing = printing = float("inf")
    for _ in range(rounds):
        began = time.process_time()
        kernel = trace(size)
        traced = time.process_time()
        kernel.ptx()
        tracing, printing = min(tracing, traced - began), min(printing, time.process_time() - traced)
    instructions = len(kernel)
    rates = {"trace": tracing, "print": printing}
    return {
        "case": f"{size} instructions", "instructions": instructions,
        **{what: round(instructions / seconds) for what, seconds in rates.items()},
    }  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_trace", description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=records.RESULTS, metavar="DIR", help="for the record (%(default)s)")
    given = parser.parse_args(arguments)
    rows = [measured(size, ROUNDS) for size in SIZES]
    keys = ("instructions", "trace", "print")
    print(
        table(("instructions", "traced per second", "printed per second"), [[row[key] for key in keys] for row in rows])
    )
    run = records.Run("trace", records.environment(), {"rounds": ROUNDS, "cores": 1}, rows)
    print(f"record: {records.append(run, given.out)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
