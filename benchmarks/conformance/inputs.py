"""What the forms are given: edges of each type and random words, the same on every machine."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np

from .forms import Case
from .kernels import Given

__all__ = ["draw"]

Words = np.ndarray[Any, np.dtype[np.uint64]]

# bits of the exponent and of the mantissa, and the largest exponent field of finite values
FLOATS = {"f64": (11, 52), "f32": (8, 23), "tf32": (8, 23), "f16": (5, 10), "bf16": (8, 7), "e4m3": (4, 3),
          "e5m2": (5, 2)}  # fmt: skip
PACKED = {"f16x2": ("f16", 16), "bf16x2": ("bf16", 16), "e4m3x2": ("e4m3", 8), "e5m2x2": ("e5m2", 8),
          "u16x2": ("u16", 16), "s16x2": ("s16", 16)}  # fmt: skip
# Values around which conversions and approximations turn: limits of integers and narrow floats, ties between them.
TURNS = [0.5, 1.5, 2.5, 3.5, 127.5, 128.5, 254.5, 255.5, 32767.5, 65535.5, 127, 128, 129, 255, 256, 32767, 32768, 65535,
         65536, 2.0**31, 2.0**31 - 128, 2.0**31 - 1, 2.0**32, 2.0**32 - 256, 2.0**32 - 1, 2.0**63, 2.0**64, 2.0**53 + 1,
         2.0**24 + 1, 2.0**24 - 1, 65504, 65519, 65519.996, 65520, 448, 464, 463.9, 480, 57344, 61440, 61439, 2.0**-24,
         2.0**-25, 1.5 * 2**-25, 2.0**-14, 2.0**-14 - 2.0**-26, 2.0**-6, 2.0**-9, 2.0**-10, 2.0**-16, 2.0**-17,
         3.3895e38, 3.3961775e38, 3.4028235e38, 2.0**-126, 2.0**-133, 2.0**-134, 2.0**-149, 1e-45, 1 / 3, 3.14159274,
         1.57079637, 0.693147182, 88.7, 126.0, 127.0, 149.0, 150.5, 1 - 2.0**-24, 1 + 2.0**-23, 1 + 2.0**-8,
         1 + 2.0**-9, 1 + 2.0**-11, 1 + 2.0**-12, 1 + 3 * 2.0**-11, 4.0, 9.0, 10.0]  # fmt: skip


def draw(case: Case, given: Given, lanes: int, seed: str = "") -> Words:
    """One word a lane."""
    random = _Random(f"{case.name}/{given.name}/{given.element}{seed}")
    special = _special(case, given)
    if special:
        return special(random, lanes) & _mask(given.type.bits)
    return _typed(random, given.type.name, lanes)


class _Random:
    """A counter hashed by splitmix64: the same words wherever NumPy runs."""

    def __init__(self, seed: str):
        self.state = np.uint64(int.from_bytes(hashlib.blake2b(seed.encode(), digest_size=8).digest(), "little"))

    def words(self, lanes: int) -> Words:
        with np.errstate(over="ignore"):
            self.state = self.state + np.uint64(0x632BE59BD9B4E019)
            z = self.state + np.arange(1, lanes + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
            z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            return z ^ (z >> np.uint64(31))

    def below(self, limit: int, lanes: int) -> Words:
        return self.words(lanes) % np.uint64(limit)

    def pick(self, values: Any, lanes: int) -> Words:
        table = np.array([int(value) & (2**64 - 1) for value in values], dtype=np.uint64)
        return table[self.below(len(table), lanes)]


def _mask(bits: int) -> np.uint64:
    return np.uint64(2**bits - 1)


def _mix(random: _Random, lanes: int, *parts: tuple[int, Words]) -> Words:
    """Lane by lane one of the parts, as often as its weight of 100 says."""
    dice, result, threshold = random.below(100, lanes), parts[-1][1], 0
    for weight, words in parts:
        inside = (dice >= np.uint64(threshold)) & (dice < np.uint64(threshold + weight))
        result = np.where(inside, words, result)
        threshold += weight
    return result


def _typed(random: _Random, kind: str, lanes: int) -> Words:
    if kind in PACKED:
        element, bits = PACKED[kind]
        low, high = _typed(random, element, lanes), _typed(random, element, lanes)
        return low | high << np.uint64(bits)
    if kind in FLOATS:
        return _floats(random, kind, lanes)
    return _integers(random, int("".join(c for c in kind if c.isdigit()) or 1), lanes)


def _integers(random: _Random, bits: int, lanes: int) -> Words:
    """Edges; words of every length, of either sign; any word."""
    if bits == 1:
        return random.below(2, lanes)
    top = 1 << (bits - 1)
    edges = [0, 1, 2, 3, -1, -2, top, top - 1, top + 1, top - 2, top >> 1, 0x5555555555555555, 0xAAAAAAAAAAAAAAAA, 7,
             255, 127, 128, 65535, 32768, 1 << (bits // 2), (1 << (bits // 2)) - 1]  # fmt: skip
    short = random.words(lanes) >> (random.below(bits, lanes) + np.uint64(64 - bits))
    signed = np.where(random.below(2, lanes) == 0, short, ~short + np.uint64(1))
    parts = (30, random.pick(edges, lanes)), (35, signed), (35, random.words(lanes))
    return _mix(random, lanes, *parts) & _mask(bits)


def _floats(random: _Random, kind: str, lanes: int) -> Words:
    """Edges; any bits; values of magnitudes that meet each other; short mantissas, so that ties happen."""
    exponent_bits, mantissa_bits = FLOATS[kind]
    total, bias = exponent_bits + mantissa_bits, (1 << (exponent_bits - 1)) - 1
    sign = random.below(2, lanes) << np.uint64(total)
    mantissa = random.words(lanes) & _mask(mantissa_bits)

    def scaled(spread: int, mantissa: Words) -> Words:
        spread = min(spread, bias - 1)
        exponent = random.below(2 * spread + 1, lanes) + np.uint64(bias - spread)
        return exponent << np.uint64(mantissa_bits) | mantissa

    short = mantissa & ~(_mask(mantissa_bits) >> random.below(mantissa_bits + 1, lanes))
    wide = 40 if mantissa_bits > 10 else 14
    magnitude = _mix(
        random, lanes, (30, random.pick(_float_edges(kind), lanes)), (15, random.words(lanes) & _mask(total)),
        (30, scaled(6, mantissa)), (25, scaled(wide, short)),
    )  # fmt: skip
    return magnitude | sign


def _float_edges(kind: str) -> list[int]:
    exponent_bits, mantissa_bits = FLOATS[kind]
    infinity, one = ((1 << exponent_bits) - 1) << mantissa_bits, ((1 << (exponent_bits - 1)) - 1) << mantissa_bits
    quiet = infinity | 1 << (mantissa_bits - 1)
    edges = [0, 1, 2, (1 << mantissa_bits) - 1, 1 << mantissa_bits, (1 << mantissa_bits) + 1, infinity, infinity - 1,
             infinity + 1, quiet, quiet + 1, infinity | ((1 << mantissa_bits) - 1), one, one - 1, one + 1,
             1 << (mantissa_bits - 1), one + (1 << mantissa_bits)]  # fmt: skip
    if kind in ("e4m3", "e5m2"):
        return edges
    return edges + [_encode(value, kind) for value in TURNS if _encode(value, kind) < infinity]


def _encode(value: float, kind: str) -> int:
    if kind == "f64":
        return int(np.float64(value).view(np.uint64))
    if kind == "f16":
        with np.errstate(over="ignore"):
            return int(np.float16(value).view(np.uint16))
    with np.errstate(over="ignore"):
        bits = int(np.float32(value).view(np.uint32))
    return bits >> 16 if kind == "bf16" else bits


Source = Callable[[_Random, int], Words]


def _small(limit: int) -> Source:
    """Mostly below a limit, sometimes any word."""
    return lambda random, lanes: _mix(
        random, lanes, (85, random.below(limit, lanes)), (15, random.words(lanes) & _mask(32))
    )


def _pool(*values: int) -> Source:
    return lambda random, lanes: random.pick(values, lanes)


SPECIAL: dict[tuple[str, str], Source] = {
    ("shl", "b"): _small(70), ("shr", "b"): _small(70), ("shf", "shift"): _small(70), ("bmsk", "a"): _small(40),
    ("bmsk", "b"): _small(40), ("szext", "b"): _small(40), ("fns", "base"): _pool(*range(32)),
    ("fns", "offset"): _pool(*range(-9, 10)), ("shfl", "b"): _small(40), ("shfl.dual", "b"): _small(40),
    ("shfl", "clamp"): _pool(0x1F, 0x1F, 0, 0x181F, 0x1C1F, 0x1007, 0x1803),
    ("shfl.dual", "clamp"): _pool(0x1F, 0x1F, 0, 0x181F, 0x1C1F, 0x1007, 0x1803),
    ("match.any", "a"): _pool(0, 1, 1 << 31, 1 << 32, 5), ("match.all", "a"): _pool(7),
}  # fmt: skip


def _fragment(kind: str, bits: int) -> Source:
    """Words of matrix elements. Floating ones are finite and of like magnitudes, as in a product."""

    def words(random: _Random, lanes: int) -> Words:
        if kind not in FLOATS:
            return random.words(lanes)
        width = sum((1, *FLOATS[kind]))
        result = np.zeros(lanes, np.uint64)
        for at in range(0, bits, width):
            result |= _moderate(random, kind, lanes) << np.uint64(at)
        return result

    return words


def _moderate(random: _Random, kind: str, lanes: int) -> Words:
    exponent_bits, mantissa_bits = FLOATS[kind]
    spread = 3 if exponent_bits < 6 else 8
    exponent = random.below(2 * spread, lanes) + np.uint64((1 << (exponent_bits - 1)) - 1 - spread)
    sign = random.below(2, lanes) << np.uint64(exponent_bits)
    magnitude = (sign | exponent) << np.uint64(mantissa_bits) | (random.words(lanes) & _mask(mantissa_bits))
    return np.where(random.below(16, lanes) == 0, np.uint64(0), magnitude)


def _special(case: Case, given: Given) -> Source | None:
    """Operands for which most words of their type would say little."""
    if given.name in ("position", "length"):
        return _small(70)
    if given.name == "row":
        return _pool(*range(32))
    if "atype" in case.values and case.kind in ("plain", "wgmma") and case.row.path[:2] != "dp":
        kinds = {"a": "atype", "b": "btype", "c": "ctype", "d": "dtype"}
        kind = case.values.get(kinds[given.name[-1]]) or case.values["atype"]
        return _fragment(str(kind), given.type.bits)
    return SPECIAL.get((case.row.path, given.name))
