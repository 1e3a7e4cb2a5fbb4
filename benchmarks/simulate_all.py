"""Every kernel of the package on the simulator, under every policy and many seeds: no report, and right values.

    python -m benchmarks.simulate_all [--seeds N] [--processes N] [--only TEXT] [--out DIR]

Run number i of a kernel takes problem i of its trials, round and round, with the seed's own inputs. Prints a table per
family, appends a record, and exits with 1 where a kernel is reported or wrong.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import torch

from benchmarks import records
from pyptx_ops.dsl.sim import POLICIES, SimulationError
from pyptx_ops.tables import table
from pyptx_ops.trials import CONFIGS, trials_of
from pyptx_ops.trials.simulated import simulated

SEEDS = 20


@dataclass
class Result:
    """Of one kernel. worst: error over its bound.  seconds: with tracing, inputs and references."""

    kernel: str
    runs: int = 0
    executed: int = 0
    worst: float = 0.0
    seconds: float = 0.0
    failures: list[str] = field(default_factory=list)


def swept(number: int, seeds: int) -> Result:
    """The kernel of CONFIGS[number] under every policy and seed; stops at its first failure."""
    config, began = CONFIGS[number], time.perf_counter()
    trials = list(trials_of(config))
    result = Result(config.name)
    for i, (seed, policy) in enumerate(product(range(seeds), POLICIES)):
        trial = trials[i % len(trials)]
        where = f"{trial.kernel} ({trial.what}), policy {policy}, seed {seed}"
        try:
            outcome = simulated(trial, seed, policy=policy)
        except (SimulationError, RuntimeError) as error:
            result.failures.append(f"{where}: {error}")
            break
        result.runs += 1
        result.executed += outcome.executed
        result.worst = max(result.worst, outcome.excess)
        if not outcome.excess <= 1:
            result.failures.append(f"{where}: {outcome.excess:.3g} times its error bound")
            break
    result.seconds = time.perf_counter() - began
    return result


def families(results: Sequence[Result]) -> list[dict[str, Any]]:
    """A row for each family of kernels."""
    members: dict[str, list[Result]] = {}
    for result in results:
        members.setdefault(result.kernel.partition("_bf16")[0].partition("_f16")[0], []).append(result)
    return [
        {
            "case": family,
            "kernels": len(those),
            "runs": sum(result.runs for result in those),
            "instructions": sum(result.executed for result in those),
            "worst": round(max(result.worst for result in those), 4),
            "failed": sum(len(result.failures) for result in those),
            "seconds": round(sum(result.seconds for result in those), 1),
        }
        for family, those in members.items()
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.simulate_all", description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=SEEDS, metavar="N", help="of each policy (%(default)s)")
    parser.add_argument("--processes", type=int, default=1, metavar="N", help="that share the kernels (%(default)s)")
    parser.add_argument("--only", default="", metavar="TEXT", help="kernels whose name contains this")
    parser.add_argument("--out", type=Path, default=records.RESULTS, metavar="DIR", help="for the record (%(default)s)")
    parser.add_argument("--commit", help="of the sources, where they are not in a git checkout")
    given = parser.parse_args(arguments)
    numbers = [number for number, config in enumerate(CONFIGS) if given.only in config.name]
    began = time.perf_counter()
    if given.processes > 1:
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(given.processes, context, torch.set_num_threads, (1,)) as pool:
            results = list(pool.map(swept, numbers, [given.seeds] * len(numbers)))
    else:
        results = [swept(number, given.seeds) for number in numbers]
    seconds = time.perf_counter() - began
    rows = families(results)
    print(table(tuple(rows[0]) if rows else (), [list(row.values()) for row in rows]))
    failures = [failure for result in results for failure in result.failures]
    for failure in failures:
        print(f"FAILED {failure}")
    runs = sum(result.runs for result in results)
    print(f"{len(results)} kernels, {runs} runs, {len(failures)} failed, {seconds:.0f} s")
    described = {"policies": POLICIES, "seeds": given.seeds, "processes": given.processes, "only": given.only}
    summary = {"kernels": len(results), "runs": runs, "failures": failures, "wall_seconds": round(seconds, 1)}
    run = records.Run("simulate", records.environment(given.commit), described, rows, summary)
    print(f"record: {records.append(run, given.out)}")
    return 1 if failures or not results else 0


if __name__ == "__main__":
    sys.exit(main())
