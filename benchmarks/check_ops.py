"""Every op against its fp64 truth, over sizes around tile edges, layouts, groups, options and LLM shapes.

    python -m benchmarks.check_ops [--only TEXT] [--out DIR]

Outputs are poisoned with NaN beforehand. Prints the largest error over its bound per op and dtype, appends a record,
and exits with 1 where an answer is out of bound.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from benchmarks import harness, records
from benchmarks.check_cases import Check, checks
from benchmarks.check_gated import gated_checks
from pyptx_ops.tables import table

SHOWN = 20  # failures on the screen; the record has all


@dataclass
class Tally:
    """What came of the checks of one op and dtype. worst: error over bound, of those that gave an answer."""

    checks: int = 0
    worst: float = 0.0
    at: str = ""
    failures: list[str] = field(default_factory=list)


def tallied(every: Iterable[Check], deadline: float) -> tuple[dict[tuple[str, str], Tally], int]:
    """Runs checks until the deadline (of `time.monotonic`); what came of them, and how many were left out."""
    tallies: dict[tuple[str, str], Tally] = {}
    left_out = 0
    for check in every:
        if time.monotonic() > deadline:
            left_out += 1
            continue
        tally = tallies.setdefault((check.op, str(check.dtype).removeprefix("torch.")), Tally())
        torch.manual_seed(zlib.crc32(f"{check.op} {check.dtype} {check.name}".encode()))
        tally.checks += 1
        try:
            excess = check.run()
        except (RuntimeError, ValueError, TypeError, AssertionError) as error:
            if torch.cuda.is_available():
                torch.cuda.synchronize()  # raises where the device is lost: then no further check means anything
            tally.failures.append(f"{check.name}: {type(error).__name__}: {error}".splitlines()[0][:300])
            continue
        if not excess <= 1:
            tally.failures.append(f"{check.name}: {excess:.3g} times its bound")
        if math.isfinite(excess) and excess > tally.worst:
            tally.worst, tally.at = excess, check.name
    return tallies, left_out


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.check_ops", description=__doc__.splitlines()[0])
    parser.add_argument("--budget", type=float, default=130.0, metavar="S", help="seconds to spend (%(default)s)")
    parser.add_argument("--only", default="", metavar="TEXT", help="checks whose op and name contain this")
    parser.add_argument("--out", type=Path, default=records.RESULTS, metavar="DIR", help="for the record (%(default)s)")
    parser.add_argument("--commit", help="of the sources, where they are not in a git checkout")
    given = parser.parse_args(arguments)
    if not harness.has_gpu():
        return 2
    began = time.monotonic()
    chosen = (check for check in chain(checks(), gated_checks()) if given.only in f"{check.op} {check.name}")
    tallies, left_out = tallied(chosen, began + given.budget)
    rows: list[dict[str, Any]] = [
        {
            "case": op,
            "dtype": dtype,
            "checks": t.checks,
            "failed": len(t.failures),
            "worst": round(t.worst, 4),
            "at": t.at,
        }
        for (op, dtype), t in tallies.items()
    ]
    print(table(("op", "dtype", "checks", "failed", "error / bound", "at"), [list(row.values()) for row in rows]))
    failures = [f"{op} {dtype} {text}" for (op, dtype), t in tallies.items() for text in t.failures]
    for failure in failures[:SHOWN]:
        print(f"FAILED {failure}")
    if left_out:
        print(f"FAILED no time left for {left_out} checks")
    print(f"{sum(row['checks'] for row in rows)} checks, {len(failures)} failed, {time.monotonic() - began:.0f} s")
    described = {"only": given.only, "left_out": left_out, "failures": failures}
    run = records.Run("check", records.environment(given.commit), described, rows)
    print(f"record: {records.append(run, given.out)}")
    return 1 if failures or left_out or not rows else 0


if __name__ == "__main__":
    sys.exit(main())
