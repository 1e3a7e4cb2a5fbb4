"""What GPUs answered for whole kernels (`benchmarks/same_bits`), and the simulator again: the same bits."""

from __future__ import annotations

import json
import lzma
import random
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from benchmarks.same_bits import POLICIES, SEED, cases, kind_of, ran
from pyptx_ops.trials.inputs import digest
from pyptx_ops.trials.simulated import simulated

FILES = sorted((Path(__file__).parent / "golden").glob("same_bits_*.json.xz"))
KINDS = sorted({kind_of(trial, "out") for _, trial in cases()})
OF_A_KIND = 5  # problems, drawn anew for each seed


def read(path: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(lzma.decompress(path.read_bytes()))
    return document


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name.partition(".")[0])
@pytest.mark.parametrize("kind", KINDS)
def test_kernels_give_the_bits_that_a_gpu_gave(path: Path, kind: str, seed: int) -> None:
    document = read(path)
    answers, kernels = document["answers"], tuple(document["kernels"].items())
    of_kind = [(name, trial) for name, trial in cases() if name in answers and kind_of(trial, "out") == kind]
    in_any_order = random.sample(of_kind, len(of_kind))
    chosen = list(islice((case for case in in_any_order if ran(case[1].kernel, kernels)), OF_A_KIND))
    if not chosen:
        pytest.skip("the GPU was not asked for these kernels as they are now")
    for name, trial in chosen:
        assert digest(trial.inputs(SEED)) == answers[name]["inputs"], f"{name}: made from other inputs"
        outputs = simulated(trial, SEED, policy=random.choice(POLICIES)).outputs
        got = {key: digest({"": tensor}) for key, tensor in outputs.items()}
        assert got == answers[name]["outputs"], (
            f"{name}: other bits than {document['environment']['gpu']} (seed {seed})"
        )


def test_there_are_answers_of_a_gpu() -> None:
    assert {document["environment"]["gpu"] for document in map(read, FILES)} >= {"NVIDIA H200"}
    assert sum(len(read(path)["answers"]) for path in FILES) >= 1312
