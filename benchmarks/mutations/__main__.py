"""Mutants of kernels of every family on the simulator: how many are found, and by what.

    python -m benchmarks.mutations [--jobs N] [--only TEXT] [--out DIR]

Prints a table per family and kind of mutation, appends a record, and exits with 1 where a mutant survives without an
explanation, or is found by a report that is not about it.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import torch

from benchmarks import records
from pyptx_ops.tables import table

from .running import SCHEDULES
from .sweep import KERNELS, families, results_of, summary


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mutations", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--jobs", type=int, default=1, metavar="N", help="processes that share the kernels (%(default)s)"
    )
    parser.add_argument("--only", default="", metavar="TEXT", help="kernels whose name contains this")
    parser.add_argument("--out", type=Path, default=records.RESULTS, metavar="DIR", help="for the record (%(default)s)")
    parser.add_argument("--commit", help="of the sources, where they are not in a git checkout")
    given = parser.parse_args(arguments)
    kernels = [name for name in KERNELS if given.only in name]
    began = time.perf_counter()
    if given.jobs > 1:
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(given.jobs, context, torch.set_num_threads, (1,)) as pool:
            found = list(pool.map(results_of, kernels))
    else:
        found = [results_of(name) for name in kernels]
    seconds = time.perf_counter() - began
    results = [result for results in found for result in results]
    rows, told = families(results), summary(results)
    print(table(tuple(rows[0]) if rows else (), [list(row.values()) for row in rows]))
    for name, rated in {**told["families"], "all": told["all"]}.items():
        print(f"{name}: {rated['killed']:.1%} of {rated['mutants']} found, {rated['by value']} by their values only")
    for problem in told["problems"]:
        print(f"FAILED {problem}")
    described = {"schedules": SCHEDULES, "kernels": kernels, "jobs": given.jobs}
    run = records.Run(
        "mutations", records.environment(given.commit), described, rows, {**told, "wall_seconds": round(seconds, 1)}
    )
    print(f"{len(results)} mutants, {seconds:.0f} s; record: {records.append(run, given.out)}")
    return 1 if told["problems"] or not results else 0


if __name__ == "__main__":
    sys.exit(main())
