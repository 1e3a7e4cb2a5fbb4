"""Readings of the special-function unit, dense enough to find its tables: a form on many inputs of one range."""

from __future__ import annotations

import hashlib
import json
import lzma
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .forms import cases
from .machines import Gpu

__all__ = ["PER_DIGEST", "TABLES", "Reading", "digest", "digests_of", "load", "read"]

Array = np.ndarray[Any, Any]
PER_DIGEST = 1 << 16


@dataclass(frozen=True)
class Reading:
    """form: its name.  inputs: the words it is given.  truth: in double.  dense: a range of which digests of all words
    are read as well.  others: the words that its further operands are."""

    form: str
    inputs: Callable[[], Array]
    truth: Callable[[Array], Array]
    dense: tuple[int, int] | None = None
    others: tuple[int, ...] = ()

    def operands(self, words: Array) -> Array:
        return np.stack([words, *(np.full_like(words, other) for other in self.others)])


def _steps(first: int, past: int, step: int) -> Callable[[], Array]:
    return lambda: np.arange(first, past, step, dtype=np.uint64)


def _uniform(low: float, high: float, count: int) -> Callable[[], Array]:
    return lambda: _bits(np.random.RandomState(count).uniform(low, high, count))


def _log_uniform(low: float, high: float, count: int) -> Callable[[], Array]:
    def draw() -> Array:
        random = np.random.RandomState(count)
        return _bits(np.exp2(random.uniform(low, high, count)) * random.choice([-1.0, 1.0], count))

    return draw


def _bits(values: Array) -> Array:
    return values.astype(np.float32).view(np.uint32).astype(np.uint64)


def _every_half() -> Array:
    return np.arange(1 << 16, dtype=np.uint64)


def _exp2(x: Array) -> Array:
    return np.asarray(np.exp2(x))


F32, F64, F16X4, BF16X4 = "f32,f32", "f64,f64", "f16,f16,f16,f16", "bf16,bf16,bf16,bf16"
_least = _steps(0x00800000, 0x00800100, 1)
ONE, TWO, FOUR, HALF = 0x3F800000, 0x40000000, 0x40800000, 0x3F000000
TABLES: dict[str, Reading] = {
    "rcp": Reading(f"rcp.approx.ftz.f32 {F32}", _steps(ONE, TWO, 127), lambda x: 1 / x, (ONE, TWO)),
    "ex2 from 1 to 2": Reading(f"ex2.approx.ftz.f32 {F32}", _steps(ONE, TWO, 127), _exp2, (ONE, TWO)),
    "rsqrt": Reading(f"rsqrt.approx.ftz.f32 {F32}", _steps(ONE, FOUR, 127), lambda x: 1 / np.sqrt(x), (ONE, FOUR)),
    "sqrt": Reading(f"sqrt.approx.ftz.f32 {F32}", _steps(ONE, FOUR, 127), np.sqrt, (ONE, FOUR)),
    "lg2": Reading(f"lg2.approx.ftz.f32 {F32}", _steps(HALF, TWO, 61), np.log2, (HALF, TWO)),
    "lg2 anywhere": Reading(
        f"lg2.approx.ftz.f32 {F32}", lambda: _log_uniform(-126, 127, 20000)() & 0x7FFFFFFF, np.log2
    ),
    "ex2": Reading(f"ex2.approx.ftz.f32 {F32}", _uniform(-130, 130, 100000), _exp2),
    "ex2 near 0": Reading(f"ex2.approx.ftz.f32 {F32}", _log_uniform(-30, 1, 60000), _exp2),
    "sin": Reading(f"sin.approx.ftz.f32 {F32}", _uniform(-3.2, 3.2, 120000), np.sin),
    "sin anywhere": Reading(f"sin.approx.ftz.f32 {F32}", _log_uniform(-30, 20, 30000), np.sin),
    "cos": Reading(f"cos.approx.ftz.f32 {F32}", _uniform(-3.2, 3.2, 60000), np.cos),
    "cos anywhere": Reading(f"cos.approx.ftz.f32 {F32}", _log_uniform(-30, 20, 30000), np.cos),
    "tanh": Reading(f"tanh.approx.f32 {F32}", _log_uniform(-14, 5, 60000), np.tanh),
    "rcp f64": Reading(
        f"rcp.approx.ftz.f64 {F64}", _steps(0x3FF00000 << 32, 0x40000000 << 32, 9 << 32), lambda x: 1 / x
    ),
    "rsqrt f64": Reading(
        f"rsqrt.approx.ftz.f64 {F64}", _steps(0x3FF00000 << 32, 0x40100000 << 32, 17 << 32), lambda x: 1 / np.sqrt(x)
    ),
    "ex2 f16": Reading("ex2.approx.f16 f16,f16", _every_half, _exp2),
    "ex2 bf16": Reading("ex2.approx.ftz.bf16 bf16,bf16", _every_half, _exp2),
    "tanh f16": Reading("tanh.approx.f16 f16,f16", _every_half, np.tanh),
    "tanh bf16": Reading("tanh.approx.bf16 bf16,bf16", _every_half, np.tanh),
    # which NaN fma.oob takes for out of bounds, and what is flushed of products between half and all of the last place
    "oob f16": Reading(f"fma.rn.oob.f16 {F16X4}", _every_half, lambda x: x, others=(0x3C00, 0)),
    "oob bf16": Reading(f"fma.rn.oob.bf16 {BF16X4}", _every_half, lambda x: x, others=(0x3F80, 0)),
    "flush mul f16": Reading("mul.rn.ftz.f16 f16,f16,f16", _every_half, lambda x: x, others=(0x3BFE,)),
    "flush fma f16": Reading(f"fma.rn.ftz.f16 {F16X4}", _every_half, lambda x: x, others=(0x3BFE, 0)),
    "flush mul f32": Reading("mul.rn.ftz.f32 f32,f32,f32", _least, lambda x: x, others=(0x3F7FFFFE,)),
    "flush fma f32": Reading("fma.rn.ftz.f32 f32,f32,f32,f32", _least, lambda x: x, others=(0x3F7FFFFE, 0)),
}


def read(machine: Gpu, path: Path, only: str = "") -> None:
    """Every table, as differences from the truth in steps of the last place, with a digest of the outputs."""
    head: dict[str, Any] = {}
    blobs = []
    by_name = {case.name: case for case in cases()}
    for name, reading in TABLES.items():
        if only not in name:
            continue
        inputs = reading.inputs()
        outputs = machine.run_on(by_name[reading.form], reading.operands(inputs))[0]
        differences = outputs.astype(np.int64) - expected(reading, inputs)
        dense = []
        for first in range(*reading.dense, PER_DIGEST) if reading.dense else ():
            words = np.arange(first, first + PER_DIGEST, dtype=np.uint64)
            dense.append(digest(machine.run_on(by_name[reading.form], reading.operands(words))[0]))
        head[name] = [digest(outputs), dense]
        blobs.append(differences.astype("<i8").tobytes())
    path.write_bytes(lzma.compress(json.dumps(head).encode() + b"\n" + b"".join(blobs)))


def load(path: Path) -> dict[str, tuple[Array, list[str]]]:
    """Table -> (outputs, digests of the dense range). Raises ValueError where this machine's truth differs."""
    line, _, blob = lzma.decompress(path.read_bytes()).partition(b"\n")
    at, result = 0, {}
    for name, (whole, dense) in json.loads(line).items():
        inputs = TABLES[name].inputs()
        differences = np.frombuffer(blob[at : at + 8 * len(inputs)], "<i8")
        at += 8 * len(inputs)
        outputs = (expected(TABLES[name], inputs) + differences).astype(np.uint64)
        if digest(outputs) != whole:
            raise ValueError(f"{path}: {name} does not come out as it was read")
        result[name] = outputs, dense
    return result


def digests_of(path: Path) -> dict[str, tuple[str, list[str]]]:
    """Table -> (digest of its outputs, digests of the dense range)."""
    found: dict[str, tuple[str, list[str]]] = json.loads(lzma.decompress(path.read_bytes()).partition(b"\n")[0])
    return found


def expected(reading: Reading, inputs: Array) -> Array:
    """The bits of the truth, rounded to the type."""
    kind = reading.form.rpartition(",")[2]
    with np.errstate(all="ignore"):
        if kind == "f64":
            return reading.truth(inputs.view(np.float64)).view(np.int64) >> 32 << 32  # the lower word is zero
        if kind == "f16":
            values = inputs.astype(np.uint16).view(np.float16).astype(np.float64)
            return reading.truth(values).astype(np.float16).view(np.uint16).astype(np.int64)
        single = (inputs << np.uint64(16) if kind == "bf16" else inputs).astype(np.uint32).view(np.float32)
        bits = reading.truth(single.astype(np.float64)).astype(np.float32).view(np.uint32).astype(np.int64)
        return bits >> 16 if kind == "bf16" else bits


def digest(words: Array) -> str:
    """Of words on their way out."""
    return hashlib.blake2b(words.astype("<u8").tobytes(), digest_size=8).hexdigest()
