"""Times every GEMM config on every case, beside what the selector's cost model predicts.

    python -m benchmarks.tune [--only TEXT] [--budget S] [--out DIR]

For calibrating `pyptx_ops/kernels/hopper/tuning`: it changes nothing. Each line shows the selector's choice, the config
that was fastest, and torch; the record has them all.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks import bench_gemm, bench_grouped_gemm, records
from benchmarks.cases import GEMM, GROUPED, GemmCase, GroupedCase
from benchmarks.forcing import candidates, pinned
from benchmarks.harness import Workload, geomean
from benchmarks.timing import Call, Clock, CudaClock, interleaved
from pyptx_ops.kernels.configs import GemmConfig, Layout
from pyptx_ops.kernels.hopper.tuning import gemm as tuning
from pyptx_ops.kernels.hopper.tuning.gemm import GemmProblem
from pyptx_ops.launch import current_launcher
from pyptx_ops.tables import table

SECONDS = 90.0
UNLIKELY = 5.0  # times the lowest prediction: not worth a reading
HOPELESS = 1.7  # times the fastest first reading: not worth more readings
ARCH = "sm_90a"
# How a and b lie in memory -> along what the tokens and the weights are contiguous.
MAJORS: dict[str, tuple[Layout, Layout]] = {"NN": ("k", "mn"), "NT": ("k", "k"), "TN": ("mn", "mn"), "TT": ("mn", "k")}


@dataclass(frozen=True)
class Trial:
    """A problem as the selector sees it, and the calls that solve it."""

    workload: Workload
    problem: GemmProblem


def trials(case: GemmCase | GroupedCase) -> Trial:
    if isinstance(case, GroupedCase):
        problem = GemmProblem(case.rows, case.n, case.k, "bf16", "k", "k", case.groups)
        return Trial(bench_grouped_gemm.workload(case), problem)
    problem = GemmProblem(case.m, case.n, case.k, "bf16", *MAJORS[case.layout])
    return Trial(bench_gemm.workload(case), problem)


def short(config: GemmConfig) -> str:
    """The parts of a config's name that differ among the candidates for one problem."""
    return config.name.split("_", 3 if not config.grouped else 4)[-1].split("_", 1)[-1]


def differs(out: Tensor, wanted: Tensor) -> bool:
    """Whether two bf16 results are further apart than two roundings each allow, in the 2-norm."""
    distance = torch.linalg.vector_norm(out.float() - wanted.float())
    return not bool(distance <= 2.0**-8 * torch.linalg.vector_norm(wanted.float()))


def likely(problem: GemmProblem, chosen: GemmConfig) -> list[GemmConfig]:
    """The candidates that were built and that the model does not rule out."""
    built = current_launcher().manifest(ARCH)
    built.kernel(chosen.name)  # raises where the kernels are older than the selector
    limit = UNLIKELY * tuning.cost(problem, chosen)
    return [config for config in candidates(problem) if config.name in built and tuning.cost(problem, config) <= limit]


def readings(trial: Trial, clock: Clock, seconds: float) -> Iterator[dict[str, Any]]:
    """One row per candidate, and one for torch; ValueError where a config's answer is wrong."""
    workload, problem = trial.workload, trial.problem
    chosen = tuning.select(problem, torch.cuda.get_device_properties(0).multi_processor_count)
    peer, peer_call = next(iter(workload.peers.items()))
    wanted = peer_call()
    assert isinstance(wanted, Tensor)
    configs = {config.name: config for config in likely(problem, chosen)}
    calls: dict[str, Call] = {peer: peer_call}
    for name, config in configs.items():
        call = pinned(workload.ours, config)
        out = call()
        assert isinstance(out, Tensor)
        if differs(out, wanted):
            raise ValueError(f"{name} gives a wrong answer")
        calls[name] = call
    del wanted, out
    first = dict(zip(calls, map(min, clock.samples(list(calls.values()), 2)), strict=True))
    limit = HOPELESS * min(first.values())
    close = {name: call for name, call in calls.items() if first[name] <= limit or name in (peer, chosen.name)}
    times = {**first, **interleaved(close, clock, seconds)}
    for name, us in times.items():
        row: dict[str, Any] = {"case": workload.case, "config": name, "us": round(us, 2)}
        if name in configs:
            cycles = tuning.cost(problem, configs[name])
            row |= {"cycles": round(cycles), "predicted_us": round(cycles / tuning.CLOCK_HZ * 1e6, 2)}
            row |= {"chosen": name == chosen.name, "short": short(configs[name])}
        yield row


def line_of(rows: Sequence[dict[str, Any]]) -> list[object]:
    peer, *ours = rows
    best = min(ours, key=lambda row: row["us"])
    chosen = next(row for row in ours if row["chosen"])
    ratio = f"{peer['us'] / chosen['us']:.3f}", f"{peer['us'] / best['us']:.3f}"
    return [
        peer["case"], peer["us"], chosen["short"], chosen["us"], chosen["predicted_us"], best["short"], best["us"],
        best["predicted_us"], *ratio,
    ]  # fmt: skip


HEADERS = ("case", "torch us", "chosen", "us", "model", "best", "us", "model", "torch/chosen", "torch/best")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tune", description=__doc__.splitlines()[0])
    parser.add_argument("--budget", type=float, default=SECONDS, metavar="S", help="seconds to spend (%(default)s)")
    parser.add_argument("--only", default="", metavar="TEXT", help="cases whose name contains this")
    parser.add_argument("--out", type=Path, default=records.RESULTS, metavar="DIR", help="for the record (%(default)s)")
    parser.add_argument("--commit", help="of the sources, where they are not in a git checkout")
    given = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        print("tuning needs a GPU, and torch sees none", file=sys.stderr)
        return 2
    began, clock = time.monotonic(), CudaClock()
    every: list[GemmCase | GroupedCase] = [*GEMM, *GROUPED]
    cases = [case for case in every if given.only in case.name]
    rows: list[dict[str, Any]] = []
    lines: list[list[object]] = []
    failures: list[str] = []
    for number, case in enumerate(cases):
        left = given.budget - (time.monotonic() - began)
        if left <= 0:
            failures.append(f"no time left for {len(cases) - number} of {len(cases)} cases, {case.name} and after")
            break
        try:
            found = list(readings(trials(case), clock, 0.6 * left / (len(cases) - number)))
        except (ValueError, RuntimeError) as error:
            torch.cuda.synchronize()  # raises where the device is lost: then nothing after this means anything
            failures.append(f"{case.name}: {error}")
            continue
        rows += found
        lines.append(line_of(found))
        torch.cuda.empty_cache()
    print(table(HEADERS, lines))
    print("\n".join(failures))
    summary = {}
    for name, column in (("torch over chosen", 8), ("torch over best", 9)):
        summary[name] = round(geomean(float(str(line[column])) for line in lines), 4) if lines else None
    print(f"geomean: {summary}; {time.monotonic() - began:.0f} s")
    described = {"only": given.only, "budget": given.budget, "failures": failures}
    run = records.Run("tune", records.environment(given.commit), described, rows, summary)
    print(f"record: {records.append(run, given.out)}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
