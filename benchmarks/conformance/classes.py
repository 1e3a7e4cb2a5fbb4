"""How closely the simulator gives what a GPU gives, form by form. Forms that no line names are exact."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from .forms import Case

__all__ = ["CLASSES", "Class", "class_of", "differences"]

Words = np.ndarray[Any, np.dtype[np.uint64]]


@dataclass(frozen=True)
class Class:
    """kind: "exact"; or "ulp": within `ulps` steps of the last place, or `absolute` if that is more; NaN for NaN."""

    kind: str
    ulps: int = 0
    reason: str = ""
    absolute: float = 0.0

    def __str__(self) -> str:
        within = f" or {self.absolute:.2g}" if self.absolute else ""
        return f"ulp {self.ulps}{within}" if self.kind == "ulp" else "exact"


EXACT = Class("exact", 0, "the ISA manual settles every bit, or readings of the hardware do")
CLASSES: tuple[tuple[str, Class], ...] = ()


def class_of(case: Case) -> Class:
    return next((found for pattern, found in CLASSES if re.match(pattern, case.name)), EXACT)


FLOATS = {"f64": (11, 52), "f32": (8, 23), "tf32": (8, 23), "f16": (5, 10), "bf16": (8, 7)}


def differences(case: Case, wanted: Words, got: Words) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """The lanes whose results are further apart than the class of the form allows."""
    found = class_of(case)
    apart = (wanted != got).any(axis=0)
    if found.kind == "exact" or not apart.any():
        return apart
    first = case.form.operands[0].type
    assert first is not None
    kind, packs = (first.name[:-2], 2) if first.name.endswith("x2") else (first.name, 1)
    apart = np.zeros_like(apart)
    for half in range(packs):
        shift = np.uint64(half * sum((1, *FLOATS[kind])))
        a, b = wanted[0] >> shift, got[0] >> shift
        apart |= (_ulps(kind, a, b) > found.ulps) & ~(np.abs(_values(kind, a) - _values(kind, b)) <= found.absolute)
    return apart


def _values(kind: str, words: Words) -> np.ndarray[Any, np.dtype[np.float64]]:
    if kind == "f64":
        return words.view(np.float64)
    if kind == "f16":
        return words.astype(np.uint16).view(np.float16).astype(np.float64)
    single = words << np.uint64(16) if kind == "bf16" else words
    with np.errstate(invalid="ignore"):
        return single.astype(np.uint32).view(np.float32).astype(np.float64)


def _ulps(kind: str, a: Words, b: Words) -> np.ndarray[Any, np.dtype[np.float64]]:
    exponent_bits, mantissa_bits = FLOATS[kind]
    total = exponent_bits + mantissa_bits
    infinity = ((1 << exponent_bits) - 1) << mantissa_bits

    def ordered(words: Words) -> tuple[Any, Any]:
        magnitude = (words & np.uint64((1 << total) - 1)).astype(np.int64)
        return np.where(words >> np.uint64(total) & np.uint64(1), -magnitude, magnitude), magnitude > infinity

    (x, x_nan), (y, y_nan) = ordered(a), ordered(b)
    distance = np.abs(x - y).astype(np.float64)
    return np.where(x_nan & y_nan, 0.0, np.where(x_nan | y_nan, np.inf, distance))
