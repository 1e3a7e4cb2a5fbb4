"""Differential conformance: every instruction form on a GPU and in the simulator.

python -m benchmarks.conformance --build             # here: trace and assemble into .build/conformance
python -m benchmarks.conformance --run --out DIR     # on the GPU machine: launch, write DIR/outputs.xz
python -m benchmarks.conformance --compare DIR       # here: run the simulator on the same inputs and compare
python -m benchmarks.conformance --classes           # the class of every form
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from pathlib import Path

from pyptx_ops.dsl.sim import SimulationError
from pyptx_ops.dsl.sim.ptx import PtxError

from .classes import class_of
from .compare import Verdict, compare
from .forms import Case, cases, left_out
from .golden import WIDE, Golden
from .kernels import outputs
from .machines import Gpu, Simulator
from .modules import DIRECTORY, build
from .tables import read

OUTPUTS, TABLES = "outputs.xz", "tables.xz"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", action="store_true")
    parser.add_argument("--run", action="store_true")
    parser.add_argument("--tables", action="store_true")
    parser.add_argument("--compare", type=Path, metavar="DIR")
    parser.add_argument("--classes", action="store_true")
    parser.add_argument("--out", type=Path, default=DIRECTORY)
    parser.add_argument("--only", default="", metavar="TEXT", help="forms (or tables) whose name contains TEXT")
    parser.add_argument("--show", type=int, default=3, help="lanes shown of a form that differs")
    options = parser.parse_args(arguments)
    chosen = [case for case in cases() if options.only in case.name]
    if options.build:
        print(f"{build()} bytes in {DIRECTORY}")
    if options.run:
        run_on_gpu(chosen, options.out)
    if options.tables:
        options.out.mkdir(parents=True, exist_ok=True)
        read(Gpu(DIRECTORY), options.out / TABLES, options.only)
    if options.classes:
        for kind, count in Counter(str(class_of(case)) for case in chosen).items():
            print(f"{count:6} {kind}")
        for name, why in left_out().items():
            print(f"not compared: {name.strip()}: {why}")
    if options.compare:
        return report(compare_all(chosen, Golden.load(options.compare / OUTPUTS)), options.show)
    return 0


def run_on_gpu(chosen: list[Case], out: Path) -> None:
    from benchmarks import records

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
        if verdict.outcome != "agrees":
            print(f"{verdict.case.name}: {verdict.outcome}: {verdict.text}")
            for line in verdict.lanes[:shown]:
                print(f"    {line}")
    for outcome, count in Counter(v.outcome for v in verdicts).items():
        print(f"{count:6} {outcome}")
    return int(any(v.outcome != "agrees" for v in verdicts))


if __name__ == "__main__":
    sys.exit(main())
