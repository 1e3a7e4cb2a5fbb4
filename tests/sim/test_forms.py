"""Arithmetic forms against exact references, on edges and random words; and with and without vector instructions."""

from __future__ import annotations

import random

import numpy as np
import pytest

from benchmarks.conformance.forms import Case, cases
from benchmarks.conformance.inputs import draw
from benchmarks.conformance.kernels import outputs, sources
from benchmarks.conformance.machines import Simulator
from pyptx_ops import _sim

from .reference import compute, knows

LANES = 32
OF_COMPARISONS = 80  # of two thousand, drawn anew for each seed
MEANINGS = sorted({case.row.meaning for case in cases() if knows(case.row.meaning)})


def chosen(meaning: str) -> list[Case]:
    found = [case for case in cases() if case.row.meaning == meaning and not case.writes_carry]
    return random.sample(found, min(len(found), OF_COMPARISONS))


def inputs(case: Case, seed: int, lanes: int = LANES) -> np.ndarray:
    return np.stack([draw(case, given, lanes, f"{seed}") for given in sources(case)])


def is_nan(word: int, kind: str) -> bool:
    return kind == "f64" and word & (2**63 - 1) > 0x7FF << 52


@pytest.mark.parametrize("meaning", MEANINGS)
def test_forms_give_what_exact_arithmetic_gives(meaning: str, seed: int) -> None:
    for case in chosen(meaning):
        words = inputs(case, seed)
        got = Simulator().run_on(case, words)
        kinds = [given.type.name for given in sources(case)]
        values = {**case.values, **case.literals}
        first = case.form.operands[0].type
        for lane in range(LANES):
            operands = [int(word) for word in words[:, lane]]
            wanted = compute(meaning, values, kinds, operands, outputs(case))
            mine = [int(word) for word in got[:, lane]]
            if first and all(is_nan(word, first.name) for word in (*mine, *wanted)):
                continue  # a NaN of f64 has a payload
            shown = [hex(word) for word in operands], [hex(word) for word in mine], [hex(word) for word in wanted]
            assert mine == wanted, f"{case.name}: of {shown[0]} came {shown[1]}, and {shown[2]} is right (seed {seed})"


LEAST = {"f32": (0x00800000, 0x3F7FFFFF), "f16": (0x0400, 0x3BFF), "f16x2": (0x04008400, 0x3BFF3BFF)}


@pytest.mark.parametrize("vectors", [True, False])
def test_products_are_flushed_by_their_value_before_it_is_rounded(vectors: bool) -> None:
    """The smallest normal number times the last one below 1: zero on an H200, though it would round up."""
    _sim.use_vectors(vectors)
    try:
        for case in cases():
            kind = str(case.values.get("type"))
            if case.row.meaning == "mul.float" and case.values.get("ftz") and kind in LEAST:
                words = np.array(LEAST[kind], np.uint64)[:, None]
                got = int(Simulator().run_on(case, words)[0, 0])
                assert got & 0x7FFF7FFF == 0, f"{case.name}: {got:#x}"
    finally:
        _sim.use_vectors(True)


def test_vector_instructions_change_no_bit(seed: int) -> None:
    if not _sim.use_vectors(True):
        pytest.skip("this processor has no AVX2 and FMA")
    machine = Simulator()
    for case in random.sample(cases(), 400):
        words = inputs(case, seed, 128) if sources(case) else np.zeros((1, 128), np.uint64)
        with_vectors = machine.run_on(case, words)
        try:
            assert not _sim.use_vectors(False)
            assert (machine.run_on(case, words) == with_vectors).all(), case.name
        finally:
            _sim.use_vectors(True)
