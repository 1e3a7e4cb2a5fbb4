"""What GPUs gave for every instruction form (`benchmarks/conformance`), and the simulator again: each in its class."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.conformance.classes import differences
from benchmarks.conformance.forms import cases
from benchmarks.conformance.golden import Golden
from benchmarks.conformance.machines import Simulator

FILES = sorted((Path(__file__).parent / "golden").glob("forms_*.xz"))
WIDTH = 128  # lanes that are run


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_simulator_gives_what_a_gpu_gave(path: Path) -> None:
    golden, machine, apart = Golden.load(path), Simulator(), []
    for case in cases():
        if case.name in golden.outputs:
            got = machine.run(case, WIDTH)[:, : golden.lanes]
            lanes = differences(case, golden.outputs[case.name], got)
            if lanes.any():
                apart.append(f"{case.name}: lanes {lanes.nonzero()[0].tolist()}")
    assert not apart, f"{len(apart)} forms differ from {golden.environment}:\n" + "\n".join(apart[:20])
    assert len(golden.outputs) > 3000
