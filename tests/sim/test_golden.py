"""What GPUs gave for every instruction form (`benchmarks/conformance`), and the simulator again: the same bits."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from benchmarks.conformance.compare import compare
from benchmarks.conformance.forms import cases
from benchmarks.conformance.golden import WIDE, Golden
from benchmarks.conformance.machines import Simulator

FILES = sorted((Path(__file__).parent / "golden").glob("forms_*.xz"))
ONE_OF = 8  # forms that are run, drawn anew for each seed; all of them: python -m benchmarks.conformance --compare


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_simulator_gives_what_a_gpu_gave(path: Path, seed: int) -> None:
    golden, machine = Golden.load(path), Simulator()
    known = [case for case in cases() if case.name in golden.outputs]
    verdicts = [compare(case, golden, machine.run(case, WIDE)) for case in random.sample(known, len(known) // ONE_OF)]
    apart = [f"{v.case.name}: {v.outcome}: {v.text} {v.lanes[:1]}" for v in verdicts if v.outcome != "agrees"]
    text = "\n".join(apart[:20])
    assert not apart, f"{len(apart)} forms differ from {golden.environment['gpu']} (seed {seed}):\n{text}"


def test_there_are_answers_of_a_gpu() -> None:
    found = [Golden.load(path) for path in FILES]
    assert {golden.environment["gpu"] for golden in found} >= {"NVIDIA H200"}
    names = {case.name for case in cases()}
    for golden in found:
        assert not golden.failures and len(golden.outputs) > 3700
        assert len(names & golden.outputs.keys()) > 3700, "most forms have other names now"
