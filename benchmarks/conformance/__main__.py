"""Differential conformance: every instruction form on a GPU and in the simulator.

python -m benchmarks.conformance --build             # here: trace and assemble into .build/conformance
python -m benchmarks.conformance --run --out DIR     # on the GPU machine: launch, write DIR/outputs.xz
python -m benchmarks.conformance --compare DIR       # here: run the simulator on the same inputs, and compare
python -m benchmarks.conformance --keep DIR          # of DIR's files what tests/sim/golden has
python -m benchmarks.conformance --forms             # how many there are, and what is left out
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks import records
from pyptx_ops.dsl.sim import SimulationError
from pyptx_ops.dsl.sim.ptx import PtxError

from .compare import Verdict, compare
from .forms import Case, cases, left_out
from .golden import WIDE, Golden
from .kernels import outputs
from .machines import Gpu, Simulator
from .modules import DIRECTORY, build
from .tables import digests_of, read

OUTPUTS, TABLES = "outputs.xz", "tables.xz"
KEPT_LANES = 16  # for the tests
AGREES = "agrees"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", action="store_true")
    parser.add_argument("--run", action="store_true")
    parser.add_argument("--tables", action="store_true")
    parser.add_argument("--compare", type=Path, metavar="DIR")
    parser.add_argument("--keep", type=Path, metavar="DIR")
    parser.add_argument("--forms", action="store_true")
    parser.add_argument("--out", type=Path, help="where files go; of --compare a record")
    parser.add_argument("--only", default="", metavar="TEXT", help="forms (or tables) whose name contains TEXT")
    parser.add_argument("--show", type=int, default=3, help="lanes shown of a form that differs")
    options = parser.parse_args(arguments)
    chosen = [case for case in cases() if options.only in case.name]
    if options.build:
        print(f"{build()} bytes in {DIRECTORY}")
    if options.run:
        run_on_gpu(chosen, options.out or DIRECTORY)
    if options.tables:
        (options.out or DIRECTORY).mkdir(parents=True, exist_ok=True)
        read(Gpu(DIRECTORY), (options.out or DIRECTORY) / TABLES, options.only)
    if options.forms:
        print("\n".join(f"{count:6} {family}" for family, count in Counter(case.family for case in chosen).items()))
        print("\n".join(f"not compared: {name.strip()}: {why}" for name, why in left_out().items()))
    if options.keep:
        keep(options.keep, options.out or DIRECTORY)
    if options.compare:
        golden = Golden.load(options.compare / OUTPUTS)
        verdicts = compare_all(chosen, golden)
        if options.out:
            print(f"record: {records.append(recorded(verdicts, golden, options.only), options.out)}")
        return report(verdicts, options.show)
    return 0


def keep(directory: Path, out: Path) -> None:
    """The outputs with fewer lanes, and the digests of the readings."""
    golden = Golden.load(directory / OUTPUTS)
    gpu = records.short_name(golden.environment)
    golden.narrowed(KEPT_LANES).save(out / f"forms_{gpu}.xz")
    head = {"environment": golden.environment, "tables": digests_of(directory / TABLES)}
    (out / f"special_{gpu}.json").write_text(json.dumps(head) + "\n")


def recorded(verdicts: list[Verdict], golden: Golden, only: str) -> records.Run:
    """By family: how many forms there are, and how many give the same bits; then those that do not."""
    rows: list[dict[str, Any]] = []
    for family in dict.fromkeys(verdict.case.family for verdict in verdicts):
        outcomes = Counter(verdict.outcome for verdict in verdicts if verdict.case.family == family)
        rows.append({"family": family, "class": "bit-exact", "forms": outcomes.total(), **outcomes})
    apart = {
        verdict.case.name: f"{verdict.outcome}: {verdict.text}" for verdict in verdicts if verdict.outcome != AGREES
    }
    environment = {**golden.environment, "simulated": records.environment()}
    reasons = Counter(left_out().values())
    return records.Run(
        "conformance", environment, {"only": only, "lanes": WIDE}, rows, {"apart": apart, "left_out": dict(reasons)}
    )


def run_on_gpu(chosen: list[Case], out: Path) -> None:
    golden, machine, start = Golden(records.environment()), Gpu(DIRECTORY), time.monotonic()
    for case in chosen:
        try:
            golden.add(case.name, outputs(case), machine.run(case, WIDE))
        except Exception as error:  # whatever a driver says: the other forms are worth having
            golden.failures[case.name] = f"{type(error).__name__}: {error}"
            print(f"{case.name}: {golden.failures[case.name]}", file=sys.stderr)
    out.mkdir(parents=True, exist_ok=True)
    golden.save(out / OUTPUTS)
    size = (out / OUTPUTS).stat().st_size
    print(
        f"{len(golden.outputs)} forms in {time.monotonic() - start:.0f} s, {len(golden.failures)} failed, {size} bytes"
    )


def compare_all(chosen: list[Case], golden: Golden) -> list[Verdict]:
    machine, verdicts = Simulator(), []
    for case in chosen:
        if case.name not in golden.outputs:
            verdicts.append(Verdict(case, "not run", golden.failures.get(case.name, "")))
            continue
        try:
            verdicts.append(compare(case, golden, machine.run(case, WIDE)))
        except PtxError as error:
            verdicts.append(Verdict(case, "no meaning", str(error)))
        except SimulationError as error:
            verdicts.append(Verdict(case, "fails", str(error)))
    return verdicts


def report(verdicts: list[Verdict], shown: int) -> int:
    for verdict in verdicts:
        if verdict.outcome != AGREES:
            print(f"{verdict.case.name}: {verdict.outcome}: {verdict.text}")
            for line in verdict.lanes[:shown]:
                print(f"    {line}")
    for outcome, count in Counter(v.outcome for v in verdicts).items():
        print(f"{count:6} {outcome}")
    return int(any(v.outcome != AGREES for v in verdicts))


if __name__ == "__main__":
    sys.exit(main())
