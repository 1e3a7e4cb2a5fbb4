"""How fast the simulator is, on one core: warp instructions per second, a 256³ product, and every kernel's trials.

    python -m benchmarks.bench_simulator [--out DIR]

Everything that the simulator checks is on. Times are the best of several runs; a record is appended.
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
from pyptx_ops.tables import table
from pyptx_ops.trials import CONFIGS, trials_of
from pyptx_ops.trials.bounds import norm_excess, product_excess, silu_excess
from pyptx_ops.trials.simulated import simulated

RUNS = 5
SCHEDULES = (("lazy", 0), ("eager", 0), ("reverse", 0), ("random", 0), ("lazy", 1), ("eager", 1), ("reverse", 1),
             ("random", 1))  # fmt: skip


def best(run: Callable[[], None], runs: int = RUNS) -> float:
    """Seconds of the quickest run, after one that traces and loads the kernel."""
    run()
    times = []
    for _ in range(runs):
        began = time.perf_counter()
        run()
        times.append(time.perf_counter() - began)
    return min(times)


def measured(call: Callable[[], object], excess: Callable[[], float]) -> dict[str, Any]:
    """The best time of a call, whose result is within its bound."""
    executed = 0

    def run() -> None:
        nonlocal executed
        with pyptx_ops.simulate() as machine:
            call()
        executed = machine.executed

    seconds = best(run)
    with pyptx_ops.simulate():
        assert excess() <= 1
    return {"seconds": round(seconds, 4), "instructions": executed, "rate": round(executed / seconds / 1e6, 2)}


def calls() -> Iterator[tuple[str, Callable[[], object], Callable[[], float]]]:
    """(case, call, its error over its bound). A product is mostly tensor cores, the others ordinary instructions."""
    torch.manual_seed(0)
    a, b = torch.randn(256, 256).bfloat16(), torch.randn(256, 256).bfloat16().t()
    yield "gemm 256x256x256 bf16", lambda: pyptx_ops.gemm(a, b), lambda: product_excess(pyptx_ops.gemm(a, b), a, b)
    x = torch.randn(256, 4096).bfloat16()
    yield "rms_norm 256x4096 bf16", lambda: pyptx_ops.rms_norm(x), lambda: norm_excess(pyptx_ops.rms_norm(x), x, None)
    yield (
        "silu_and_mul 256x2048 bf16",
        lambda: pyptx_ops.silu_and_mul(x),
        lambda: silu_excess(pyptx_ops.silu_and_mul(x), *x.chunk(2, -1)),
    )


def suite() -> dict[str, Any]:
    """Every kernel under eight schedules, tracing included."""
    began, executed = time.perf_counter(), 0
    for config in CONFIGS:
        trials = list(trials_of(config))
        for number, (policy, seed) in enumerate(SCHEDULES):
            executed += simulated(trials[number % len(trials)], seed, policy=policy).executed
    seconds = time.perf_counter() - began
    return {"seconds": round(seconds, 1), "instructions": executed, "rate": round(executed / seconds / 1e6, 2)}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_simulator", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="leave out the suite of all kernels")
    parser.add_argument("--out", type=Path, default=records.RESULTS, metavar="DIR", help="for the record (%(default)s)")
    parser.add_argument("--commit", help="of the sources, where they are not in a git checkout")
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    gc.collect()
    rows = [{"case": case, **measured(call, excess)} for case, call, excess in calls()]
    if not given.quick:
        rows.append({"case": f"{len(CONFIGS)} kernels, {len(SCHEDULES)} schedules each", **suite()})
    print(table(("case", "seconds", "warp instructions", "M/s"), [list(row.values()) for row in rows]))
    run = records.Run("simulator", records.environment(given.commit), {"runs": RUNS, "cores": 1}, rows)
    print(f"record: {records.append(run, given.out)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
