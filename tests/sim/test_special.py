"""The special-function unit against what it is known to be: readings of an H200, and the errors that PTX states."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest

from benchmarks.conformance.forms import cases
from benchmarks.conformance.machines import Simulator
from benchmarks.conformance.tables import PER_DIGEST, TABLES, digest

READ = json.loads((Path(__file__).parent / "golden" / "special_h200.json").read_text())["tables"]
FORMS = {case.name: case for case in cases()}
ONE = 0x3F800000
COUNT = 1 << 23
RUNS = 4  # of those whose digests were read, drawn anew for each seed


def outputs(form: str, words: np.ndarray) -> np.ndarray:
    return Simulator().run_on(FORMS[form], words.astype(np.uint64)[None])[0].astype(np.uint32)


@pytest.mark.parametrize("name", READ)
def test_readings_of_an_h200(name: str, seed: int) -> None:
    reading, (whole, dense) = TABLES[name], READ[name]
    got = Simulator().run_on(FORMS[reading.form], reading.operands(reading.inputs()))[0]
    assert digest(got) == whole, name
    for run in random.sample(range(len(dense)), min(RUNS, len(dense))):
        first = reading.dense[0] + run * PER_DIGEST
        words = np.arange(first, first + PER_DIGEST, dtype=np.uint64)
        got = Simulator().run_on(FORMS[reading.form], reading.operands(words))[0]
        assert digest(got) == dense[run], f"{name}: from {first:#x} on (seed {seed})"


def test_the_exponent_of_a_reciprocal_follows_from_that_of_its_operand(seed: int) -> None:
    generator = np.random.default_rng(seed)
    mantissas, exponents = generator.integers(0, COUNT, 4096), generator.integers(1, 253, 4096)
    base = outputs("rcp.approx.ftz.f32 f32,f32", ONE | mantissas).view(np.float32)
    got = outputs("rcp.approx.ftz.f32 f32,f32", exponents << 23 | mantissas).view(np.float32)
    wanted = np.ldexp(base.astype(np.float64), 127 - exponents).astype(np.float32)
    wanted[np.abs(wanted) < 2.0**-126] = 0
    assert (got == wanted).all()


BOUNDS = {
    # form: (lowest and highest operand, truth, error relative to the result, and absolute)
    "rcp.approx.f32 f32,f32": (1e-38, 1e38, lambda x: 1 / x, 2.0**-23, 2.0**-149),
    "rsqrt.approx.f32 f32,f32": (1e-44, 1e38, lambda x: 1 / np.sqrt(x), 2.0**-22.9, 0),
    "sqrt.approx.f32 f32,f32": (1e-44, 1e38, np.sqrt, 2.0**-23, 0),
    "ex2.approx.f32 f32,f32": (-140, 127, np.exp2, 2.0**-22, 2.0**-148),
    "lg2.approx.f32 f32,f32": (1e-44, 1e38, np.log2, 2.0**-22, 2.0**-22),
    "sin.approx.f32 f32,f32": (-3.14, 3.14, np.sin, 0, 2.0**-20.5),
    "cos.approx.f32 f32,f32": (-3.14, 3.14, np.cos, 0, 2.0**-20.5),
    "tanh.approx.f32 f32,f32": (-9, 9, np.tanh, 2.0**-11, 0),
}


@pytest.mark.parametrize("form", BOUNDS)
def test_approximations_are_within_the_errors_that_ptx_states(form: str, seed: int) -> None:
    low, high, truth, relative, absolute = BOUNDS[form]
    generator = np.random.default_rng(seed)
    if low > 0:
        x = np.exp2(generator.uniform(np.log2(low), np.log2(high), 8192)).astype(np.float32)
    else:
        x = generator.uniform(low, high, 8192).astype(np.float32)
    got = outputs(form, x.view(np.uint32)).view(np.float32).astype(np.float64)
    wanted = truth(x.astype(np.float64))
    error = np.abs(got - wanted) - (relative * np.abs(wanted) + absolute)
    assert error.max() <= 0, f"{form}: {x[error.argmax()]!r} is off by too much (seed {seed})"
