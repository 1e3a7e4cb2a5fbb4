"""What the benchmarks share: a workload, its measurement beside its peers, the tables, the records and the options.

Nothing is timed before its answer is checked, and nothing but what a user calls: the public op.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from benchmarks import records
from benchmarks.timing import Call, Clock, CudaClock, copy_bandwidth, interleaved
from pyptx_ops.tables import table

__all__ = [
    "OURS",
    "Options",
    "Workload",
    "admitted",
    "geomean",
    "has_gpu",
    "main",
    "measure",
    "options",
    "report",
    "rows_of",
    "summary_of",
]

OURS = "pyptx"
QUICK = 4  # of how many cases the quick run takes one
RESERVE = 0.35  # of the budget: with less left, peers that compile are left out


@dataclass(frozen=True)
class Workload:
    """One problem, and who solves it.

    case: its key in the records.  ours: the public op.  peers: the others, by name.
    excess: the error over its bound of our answer, at most 1 if it is right.
    work: of one call, in units of `unit` × 1 µs (floating point operations / 1e6 for TF/s, bytes / 1e3 for GB/s).
    moved: bytes that a call must read and write.
    compiled: peers that need seconds before their first answer; left out once time runs short.
    """

    case: str
    ours: Call
    peers: Mapping[str, Call]
    excess: Callable[[], float]
    work: float
    unit: str
    moved: int
    tags: Mapping[str, Any] = field(default_factory=dict)
    compiled: Mapping[str, Call] = field(default_factory=dict)


@dataclass(frozen=True)
class Options:
    """What the command line settles."""

    quick: bool
    budget: float
    out: Path | None
    only: str
    commit: str | None


def measure(workload: Workload, clock: Clock, seconds: float, compiled: bool = True) -> dict[str, float | str]:
    """Microseconds by name, ours first; for a peer that refuses the problem, its error instead.

    compiled: whether to take the peers that compile.

    Raises ValueError where our answer is wrong: then nothing is timed.
    """
    calls, refused = admitted(workload, compiled)
    return {**interleaved(calls, clock, seconds), **refused}


def admitted(workload: Workload, compiled: bool = True) -> tuple[dict[str, Call], dict[str, str]]:
    """(calls to time by name, ours first; the errors of peers that refuse the problem).

    Raises ValueError where our answer is wrong.
    """
    excess = workload.excess()
    if not excess <= 1:
        raise ValueError(f"our answer is {excess:.3g} times its error bound away from the truth")
    calls: dict[str, Call] = {OURS: workload.ours}
    refused: dict[str, str] = {}
    for name, call in {**workload.peers, **(workload.compiled if compiled else {})}.items():
        try:
            call()
            if torch.cuda.is_available():
                torch.cuda.synchronize()
        except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
            refused[name] = f"{type(error).__name__}: {error}".splitlines()[0][:160]
        else:
            calls[name] = call
    return calls, refused


def rows_of(workload: Workload, times: Mapping[str, float | str], copy: float | None) -> list[dict[str, Any]]:
    """Rows of a record. ratio: how many times as long as ours.  of_copy: share of the copy bandwidth of this run."""
    ours = times[OURS]
    assert isinstance(ours, float)
    rows = []
    for name, us in times.items():
        row: dict[str, Any] = {"case": workload.case, "peer": name, **workload.tags}
        if isinstance(us, str):
            rows.append({**row, "us": None, "error": us})
            continue
        row |= {"us": round(us, 2), "rate": round(workload.work / us, 2), "unit": workload.unit}
        row["ratio"] = round(us / ours, 4)
        if copy is not None:
            row["of_copy"] = round(workload.moved / us / 1e3 / copy, 4)
        rows.append(row)
    return rows


def geomean(values: Iterable[float]) -> float:
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs))


def summary_of(rows: Sequence[Mapping[str, Any]], by: str | None = None) -> list[dict[str, Any]]:
    """Per peer (and per value of the tag `by`): how many times as fast we are, as geomean and at worst."""
    ratios: dict[tuple[Any, str], list[tuple[float, str]]] = {}
    for row in rows:
        if row["peer"] != OURS and row["us"] is not None:
            for kind in ["all", *([row[by]] if by else [])]:
                ratios.setdefault((kind, row["peer"]), []).append((row["ratio"], row["case"]))
    summary = []
    for (kind, peer), found in sorted(ratios.items(), key=lambda item: (item[0][0] != "all", str(item[0]))):
        worst, case = min(found)
        mean = round(geomean(ratio for ratio, _ in found), 4)
        summary.append({"cases": kind, "over": peer, "n": len(found), "geomean": mean, "worst": worst, "at": case})
    return summary


def options(subject: str, seconds: float, arguments: Sequence[str] | None) -> Options:
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.bench_{subject}", description=f"{subject} and peers")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--full", action="store_true", help="every case (the default)")
    size.add_argument("--quick", action="store_true", help=f"one case in {QUICK}")
    parser.add_argument("--budget", type=float, default=seconds, metavar="S", help="seconds to spend (%(default)s)")
    parser.add_argument("--only", default="", metavar="TEXT", help="cases whose name contains this")
    parser.add_argument("--json", action="store_true", help=f"append a record to {records.RESULTS}, or to --out")
    parser.add_argument("--out", type=Path, metavar="DIR", help="append a record there")
    parser.add_argument("--commit", help="of the sources, where they are not in a git checkout")
    given = parser.parse_args(arguments)
    out = given.out or (records.RESULTS if given.json else None)
    return Options(given.quick, given.budget, out, given.only, given.commit)


def main(
    subject: str,
    cases: Sequence[Any],
    workloads: Callable[[Any], Iterable[Workload]],
    *,
    seconds: float,
    by: str | None = None,
    arguments: Sequence[str] | None = None,
) -> int:
    """Measures the workloads of each case and prints them; 0, or 1 where an answer was wrong or a case had no time.

    seconds: the budget where the user gives none.  by: the tag that the summary is split by.
    """
    given = options(subject, seconds, arguments)
    if not has_gpu():
        return 2
    chosen = [case for case in cases if given.only in case.name][:: QUICK if given.quick else 1]
    began = time.monotonic()
    clock = CudaClock()
    copy = copy_bandwidth(clock)
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, copy {copy:.0f} GB/s", flush=True)
    rows: list[dict[str, Any]] = []
    failures: list[str] = []
    for number, case in enumerate(chosen):
        left = given.budget - (time.monotonic() - began)
        if left <= 0:
            failures.append(f"no time left for {len(chosen) - number} of {len(chosen)} cases, {case.name} and after")
            break
        for workload in workloads(case):
            share = left / (len(chosen) - number)
            try:  # half of the time goes to operands and checks
                times = measure(workload, clock, 0.5 * share, compiled=left > RESERVE * given.budget)
            except (ValueError, RuntimeError) as error:
                torch.cuda.synchronize()  # raises where the device is lost: then nothing after this means anything
                failures.append(f"{workload.case}: {error}")
                continue
            found = rows_of(workload, times, copy)
            rows += found
            print(_line(found), flush=True)
        torch.cuda.empty_cache()
    described = {"quick": given.quick, "only": given.only, "copy_gbps": round(copy, 1)}
    report(given, subject, rows, by, failures, described)
    print(f"{subject}: {time.monotonic() - began:.0f} s")
    return 1 if failures else 0


def has_gpu() -> bool:
    """Whether torch sees a GPU; says so where it does not."""
    if not torch.cuda.is_available():
        print("benchmarks need a GPU, and torch sees none", file=sys.stderr)
    return torch.cuda.is_available()


def report(
    given: Options,
    subject: str,
    rows: list[dict[str, Any]],
    by: str | None,
    failures: list[str],
    described: dict[str, Any],
) -> None:
    """Prints how many times as fast we are, and appends the record that was asked for."""
    summary = summary_of(rows, by)
    print()
    print(table(list(summary[0]) if summary else [], [list(line.values()) for line in summary]))
    for failure in failures:
        print(f"FAILED {failure}")
    if given.out:
        run = records.Run(
            subject, records.environment(given.commit), {**described, "failures": failures}, rows, {"over": summary}
        )
        print(f"record: {records.append(run, given.out)}")


def _line(rows: Sequence[Mapping[str, Any]]) -> str:
    """A case on one line: our time and rate, and each peer's time with its ratio to ours."""
    ours, *peers = rows
    parts = [f"{ours['case']:42s} {ours['us']:9.1f} us {ours['rate']:7.1f} {ours['unit']} {ours['of_copy']:5.2f} copy"]
    for row in peers:
        shown = f"{row['us']:9.1f} us x{row['ratio']:.2f}" if row["us"] is not None else row["error"][:40]
        parts.append(f"{row['peer']} {shown}")
    return " | ".join(parts)
