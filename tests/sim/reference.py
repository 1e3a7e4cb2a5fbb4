"""What instruction forms compute, worked out with Python's integers and fractions, a lane at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

__all__ = ["compute", "knows"]

FORMATS = {
    "f64": (11, 52),
    "f32": (8, 23),
    "tf32": (8, 10),
    "f16": (5, 10),
    "bf16": (8, 7),
    "e4m3": (4, 3),
    "e5m2": (5, 2),
}
NAN, INFINITE = "nan", "infinite"
Value = Mapping[str, Any]


@dataclass(frozen=True)
class Real:
    """A floating value: a fraction, NAN or INFINITE, and its sign (of zero too)."""

    value: Any
    negative: bool = False


def decoded(bits: int, kind: str) -> Real:
    exponent_bits, mantissa_bits = FORMATS[kind]
    total, bias = exponent_bits + mantissa_bits, (1 << (exponent_bits - 1)) - 1
    negative, magnitude = bool(bits >> total & 1), bits & ((1 << total) - 1)
    exponent, fraction = magnitude >> mantissa_bits, magnitude & ((1 << mantissa_bits) - 1)
    if kind == "e4m3":
        if magnitude == 0x7F:
            return Real(NAN, negative)
    elif exponent == (1 << exponent_bits) - 1:
        return Real(NAN if fraction else INFINITE, negative)
    value = Fraction(fraction + (1 << mantissa_bits if exponent else 0), 1 << mantissa_bits)
    value *= Fraction(2) ** (max(exponent, 1) - bias)
    return Real(-value if negative else value, negative)


def whole(value: Fraction, rounding: str) -> int:
    """To an integer: n nearest even, a nearest away, z, m, p."""
    low = math.floor(value)
    rest = value - low
    if rounding in ("z", "m", "p"):
        up = rest > 0 and (rounding == "p" or (rounding == "z" and value < 0))
    elif rest == Fraction(1, 2):
        up = low % 2 == 1 if rounding == "n" else value > 0
    else:
        up = rest > Fraction(1, 2)
    return low + up


def encoded(real: Real, kind: str, rounding: str = "n", finite: bool = False) -> int:
    exponent_bits, mantissa_bits = FORMATS[kind]
    total, bias = exponent_bits + mantissa_bits, (1 << (exponent_bits - 1)) - 1
    finite = finite or kind == "e4m3"
    infinity = ((1 << exponent_bits) - 1) << mantissa_bits
    largest = 0x7E if kind == "e4m3" else infinity - 1
    if real.value is NAN:
        return (1 << total) - 1
    sign = int(real.negative) << total
    if real.value is INFINITE:
        return sign | (largest if finite else infinity)
    magnitude = abs(real.value)
    if magnitude == 0:
        return sign
    if real.negative:
        rounding = {"m": "p", "p": "m"}.get(rounding, rounding)
    exponent = max(magnitude.numerator.bit_length() - magnitude.denominator.bit_length() - 1, -bias)
    while Fraction(2) ** (exponent + 1) <= magnitude:
        exponent += 1
    exponent = max(exponent, 1 - bias)
    steps = whole(magnitude / Fraction(2) ** (exponent - mantissa_bits), rounding)
    bits = ((exponent + bias - 1) << mantissa_bits) + steps
    if bits > largest:
        bits = largest if finite or rounding in ("z", "m") else infinity
    return sign | bits


def flushed(real: Real, kind: str) -> Real:
    exponent_bits, _ = FORMATS[kind]
    small = real.value not in (NAN, INFINITE) and abs(real.value) < Fraction(2) ** (2 - (1 << (exponent_bits - 1)))
    return Real(Fraction(0), real.negative) if small else real


# -- arithmetic on reals -----------------------------------------------------------------------------------------------


def add(a: Real, b: Real, rounding: str) -> Real:
    if a.value is NAN or b.value is NAN or (a.value is INFINITE and b.value is INFINITE and a.negative != b.negative):
        return Real(NAN)
    for x in (a, b):
        if x.value is INFINITE:
            return x
    total = a.value + b.value
    if total == 0:
        return Real(total, a.negative if a.negative == b.negative else rounding == "m")
    return Real(total, total < 0)


def multiply(a: Real, b: Real) -> Real:
    negative = a.negative != b.negative
    if a.value is NAN or b.value is NAN:
        return Real(NAN)
    if INFINITE in (a.value, b.value):
        return Real(NAN) if 0 in (a.value, b.value) else Real(INFINITE, negative)
    return Real(a.value * b.value, negative)


def divide(a: Real, b: Real) -> Real:
    negative = a.negative != b.negative
    if NAN in (a.value, b.value) or a.value == b.value == 0 or a.value is b.value is INFINITE:
        return Real(NAN)
    if a.value is INFINITE or b.value == 0:
        return Real(INFINITE, negative)
    return Real(Fraction(0) if b.value is INFINITE else a.value / b.value, negative)


def root(a: Real) -> Real:
    if a.value is NAN or a.value == 0 or (a.value is INFINITE and not a.negative):
        return a
    if a.negative:
        return Real(NAN)
    scale = 1 << 2200  # enough that what is cut off decides no rounding but by being there
    found = math.isqrt(a.value.numerator * scale * scale // a.value.denominator)
    exact = Fraction(found * found) == a.value * scale * scale
    return Real(Fraction(2 * found + (not exact), 2 * scale))


def negated(a: Real) -> Real:
    return Real(a.value if a.value in (NAN, INFINITE) else -a.value, not a.negative)


ARITHMETIC: dict[str, Callable[..., Real]] = {
    "add.float": lambda rounding, a, b: add(a, b, rounding),
    "sub.float": lambda rounding, a, b: add(a, negated(b), rounding),
    "mul.float": lambda rounding, a, b: multiply(a, b),
    "fma": lambda rounding, a, b, c: add(multiply(a, b), c, rounding),
    "div.float": lambda rounding, a, b: divide(a, b),
    "rcp": lambda rounding, a: divide(Real(Fraction(1)), a),
    "sqrt": lambda rounding, a: root(a),
}


def result(real: Real, kind: str, values: Value, rounding: str) -> int:
    """Rounded, flushed and clamped as the modifiers say."""
    bits = encoded(real, kind, rounding, bool(values.get("satfinite")))
    if values.get("ftz") and (kind in ("f32", "f16")):
        bits = encoded(flushed(decoded(bits, kind), kind), kind)
    got = decoded(bits, kind)
    if values.get("sat"):
        if got.value is NAN or got.negative:
            return 0
        bits = encoded(Real(Fraction(1)), kind) if got.value is INFINITE or got.value > 1 else bits
    if values.get("relu") and got.negative and got.value is not NAN:
        return 0
    return bits


def floating(meaning: str, kind: str, values: Value, operands: list[int]) -> int:
    rounding = str(values.get("rnd") or "rn")[1]
    reals = [decoded(bits, kind) for bits in operands]
    if values.get("ftz"):
        reals = [flushed(real, kind) for real in reals]
    exact = ARITHMETIC[meaning](rounding, *reals)
    if values.get("ftz") and meaning in ("mul.float", "fma"):
        exact = flushed(exact, kind)  # judged before it is rounded
    return result(exact, kind, values, rounding)


# -- integers ----------------------------------------------------------------------------------------------------------


def signed(bits: int, width: int) -> int:
    return bits - (1 << width) if bits >> (width - 1) & 1 else bits


def width_of(kind: str) -> int:
    return int("".join(c for c in kind if c.isdigit()))


def integer(bits: int, kind: str) -> int:
    bits &= (1 << width_of(kind)) - 1
    return signed(bits, width_of(kind)) if kind[0] == "s" else bits


def clamp(value: int, kind: str) -> int:
    width = width_of(kind)
    low, high = (-(1 << (width - 1)), (1 << (width - 1)) - 1) if kind[0] == "s" else (0, (1 << width) - 1)
    return min(max(value, low), high)


def quotient(a: int, b: int) -> int:
    return -1 if b == 0 else abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def remainder(a: int, b: int) -> int:
    return -1 if b == 0 else a - b * quotient(a, b)


def bound(x: int, width: int) -> int:
    """What counts of a position or length in a field of this width; more than 80 is as good as 80."""
    return min(x if width == 64 else x & 255, 80)


def extract(a: int, position: int, length: int, kind: str) -> int:
    width = width_of(kind)
    shifted, length = a >> bound(position, width), bound(length, width)
    field = shifted & ((1 << length) - 1)
    return signed(field, length) if kind[0] == "s" and length else field


def insert(a: int, b: int, position: int, length: int, width: int) -> int:
    for i in range(bound(length, width)):
        at = i + bound(position, width)
        if at < width:
            b = b & ~(1 << at) | (a >> i & 1) << at
    return b


def lookup(a: int, b: int, c: int, table: int) -> int:
    return sum((table >> ((a >> i & 1) << 2 | (b >> i & 1) << 1 | c >> i & 1) & 1) << i for i in range(32))


def highest(a: int, width: int) -> int:
    """Of the bits that are not the sign."""
    return (a if a >= 0 else ~a).bit_length() - 1 if a not in (0, -1) else -1


def saturated(value: int, values: Value) -> int:
    return clamp(value, "s32") if values.get("sat") else value


INTEGERS: dict[str, Callable[..., int]] = {
    "add": lambda v, a, b: saturated(a + b, v),
    "sub": lambda v, a, b: saturated(a - b, v),
    "mul.lo": lambda v, a, b: a * b,
    "mul.hi": lambda v, a, b: a * b >> width_of(v["type"]),
    "mul.wide": lambda v, a, b: a * b,
    "mad.lo": lambda v, a, b, c: a * b + c,
    "mad.hi": lambda v, a, b, c: saturated((a * b >> width_of(v["type"])) + c, v),
    "mad.wide": lambda v, a, b, c: a * b + c,
    "sad": lambda v, a, b, c: abs(a - b) + c,
    "div": lambda v, a, b: quotient(a, b),
    "rem": lambda v, a, b: remainder(a, b),
    "min": lambda v, a, b: max(min(a, b), 0) if v.get("relu") else min(a, b),
    "max": lambda v, a, b: max(a, b, 0) if v.get("relu") else max(a, b),
    "abs": lambda v, a: abs(a),
    "neg": lambda v, a: -a,
    "and": lambda v, a, b: a & b,
    "or": lambda v, a, b: a | b,
    "xor": lambda v, a, b: a ^ b,
    "not": lambda v, a: ~a,
    "cnot": lambda v, a: int(a == 0),
    "shl": lambda v, a, b: a << min(b, 64),
    "shr": lambda v, a, b: a >> min(b, 64),
    "bfe": lambda v, a, position, length: extract(a, position, length, v["type"]),
    "bfi": lambda v, a, b, position, length: insert(a, b, position, length, width_of(v["type"])),
    "brev": lambda v, a: int(f"{a:0{width_of(v['type'])}b}"[::-1], 2),
    "clz": lambda v, a: width_of(v["type"]) - a.bit_length(),
    "popc": lambda v, a: bin(a).count("1"),
    "bfind": lambda v, a: (
        width_of(v["type"]) - 1 - highest(a, 0) if v.get("shiftamt") and highest(a, 0) >= 0 else highest(a, 0)
    ),
    "lop3": lambda v, a, b, c: lookup(a, b, c, v["table"]),
    "selp": lambda v, a, b, c: a if c else b,
    "mov": lambda v, a: a,
}


# -- comparisons -------------------------------------------------------------------------------------------------------

ORDER = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}
RELATIONS: dict[str, Callable[[Any, Any], bool]] = {
    "eq": lambda a, b: a == b, "ne": lambda a, b: a != b, "lt": lambda a, b: a < b, "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b, "ge": lambda a, b: a >= b,
}  # fmt: skip


def compared(cmp: str, kind: str, a: int, b: int, ftz: bool) -> bool:
    if kind not in FORMATS:
        return RELATIONS[ORDER.get(cmp, cmp)](integer(a, kind), integer(b, kind))
    reals = [flushed(decoded(bits, kind), kind) if ftz else decoded(bits, kind) for bits in (a, b)]
    unordered = NAN in (reals[0].value, reals[1].value)
    if cmp in ("num", "nan"):
        return unordered == (cmp == "nan")
    if unordered:
        return cmp.endswith("u")
    limits = [float("-inf" if r.negative else "inf") if r.value is INFINITE else r.value for r in reals]
    return RELATIONS[cmp[:2]](*limits)


def joined(values: Value, truth: bool, others: list[int]) -> bool:
    return {None: truth, "and": truth and bool(others and others[0]), "or": truth or bool(others and others[0]),
            "xor": truth != bool(others and others[0])}[values.get("bool")]  # fmt: skip


def comparison(meaning: str, values: Value, operands: list[int]) -> list[int]:
    kind, cmp, ftz = values["type"], values["cmp"], bool(values.get("ftz"))
    a, b, *others = operands
    if kind.endswith("x2"):
        kind = kind[:-2]
        truths = [compared(cmp, kind, a >> s & 0xFFFF, b >> s & 0xFFFF, ftz) for s in (0, 16)]
    else:
        first = compared(cmp, kind, a, b, ftz)
        truths = [first, not first]
    truths = [joined(values, truth, others) for truth in truths]
    if meaning == "set":
        return [(0x3F800000 if values["dtype"] == "f32" else 0xFFFFFFFF) if truths[0] else 0]
    return [int(truth) for truth in (truths if meaning == "setp.dual" else truths[:1])]


# -- conversions -------------------------------------------------------------------------------------------------------


def converted(meaning: str, values: Value, operands: list[int]) -> int:
    kind, source = values["type"], values.get("src") or "f32"
    rounding, flushes = str(values.get("rnd") or "rn")[1], bool(values.get("ftz"))
    values = {**values, "ftz": flushes and kind == "f32"}
    if meaning == "cvt.int":
        value = integer(operands[0], source)
        return clamp(value, kind) if values.get("sat") else integer(value, kind)
    if meaning == "cvt.float_from_int":
        value = integer(operands[0], source)
        return result(Real(Fraction(value), value < 0), kind, values, rounding)
    if meaning == "cvt.pack.int":
        high, low, upper = (*operands, 0)[:3]
        width = width_of(kind)
        parts = [clamp(signed(x, 32), kind) & ((1 << width) - 1) for x in (high, low)]
        return parts[0] << width | parts[1] | (upper << 16 if width == 8 else 0)
    if meaning == "cvt.pack":
        to = kind[:-2]
        shift = sum((1, *FORMATS[to]))
        high, low = (result(decoded(bits, "f32"), to, values, rounding) for bits in operands)
        return high << shift | low
    if source.endswith("x2"):
        of, to = source[:-2], kind[:-2]
        width, shift = sum((1, *FORMATS[of])), sum((1, *FORMATS[to]))
        halves = [operands[0] >> at & ((1 << width) - 1) for at in (0, width)]
        low, high = (result(decoded(bits, of), to, values, rounding) for bits in halves)
        return high << shift | low
    real = decoded(operands[0], source)
    if flushes and source == "f32" and kind != "f16":
        real = flushed(real, source)
    if real.value is NAN and not values.get("sat"):
        return of_nan(meaning, values, source, operands[0], flushes)
    if meaning == "cvt.tf32":
        bits = result(real, "tf32", values, "a" if values["rnd"] == "rna" else rounding)
        return bits << 13
    if meaning == "cvt.round":
        if real.value not in (NAN, INFINITE):
            real = Real(Fraction(whole(real.value, rounding)), real.negative)
        return result(real, kind, values, "n")
    if meaning == "cvt.int_from_float":
        if real.value is NAN:
            return of_nan(meaning, values, source, operands[0], flushes)
        unlimited = (-1 if real.negative else 1) << 80
        return clamp(unlimited if real.value is INFINITE else whole(real.value, rounding), kind)
    return result(real, kind, values, rounding)


def of_nan(meaning: str, values: Value, source: str, bits: int, flushes: bool) -> int:
    """What an H200 makes of it: canonical, but for conversions from or to 64 bits, and those made of bit operations."""
    kind = values["type"]
    if meaning == "cvt.int_from_float":
        width = width_of(kind)
        return 1 << (width - 1) if source == "f64" or width == 64 else 0
    if meaning == "cvt.tf32" and values["rnd"] == "rna":
        return (bits & ~0x1FFF) - (0x2000 if values.get("satfinite") else 0)
    if source == "bf16" and kind == "f32" and not flushes:
        return bits << 16
    canonical = encoded(Real(NAN), kind)
    if "f64" not in (source, kind):
        return canonical << (13 if kind == "tf32" else 0)
    if flushes and source == "f32":
        bits = 0x7FFFFFFF
    width, to = sum(FORMATS[source]), sum(FORMATS[kind])
    fraction = (bits & ((1 << FORMATS[source][1]) - 1)) << 64 >> FORMATS[source][1] << FORMATS[kind][1] >> 64
    infinity, quiet = encoded(Real(INFINITE), kind), 1 << (FORMATS[kind][1] - 1)
    return (bits >> width & 1) << to | infinity | quiet | fraction


CONVERSIONS = ("cvt.int", "cvt.float_from_int", "cvt.int_from_float", "cvt.float", "cvt.round", "cvt.tf32", "cvt.pack",
               "cvt.pack.int")  # fmt: skip
COMPARISONS = ("setp", "setp.dual", "set")


def knows(meaning: str) -> bool:
    return meaning in (*ARITHMETIC, *INTEGERS, *COMPARISONS, *CONVERSIONS)


def compute(meaning: str, values: Value, kinds: list[str], operands: list[int], widths: list[int]) -> list[int]:
    """The words that one lane gets. kinds: of the operands.  widths: of the results."""
    kind = str(values.get("type"))
    if meaning in COMPARISONS:
        found = comparison(meaning, values, operands)
    elif meaning in CONVERSIONS:
        found = [converted(meaning, values, operands)]
    elif meaning in ARITHMETIC and kind.endswith("x2"):
        parts = [[operand >> shift & 0xFFFF for operand in operands] for shift in (0, 16)]
        low, high = (floating(meaning, kind[:-2], values, part) for part in parts)
        found = [high << 16 | low]
    elif meaning in ARITHMETIC:
        found = [floating(meaning, kind, values, operands)]
    elif kind.endswith("x2"):
        of = kind[:-2]
        parts = [[integer(operand >> shift, of) for operand in operands] for shift in (0, 16)]
        low, high = (INTEGERS[meaning](values, *part) & 0xFFFF for part in parts)
        found = [high << 16 | low]
    else:
        plain = [
            bits if name == "pred" or name in FORMATS else integer(bits, name) for bits, name in zip(operands, kinds)
        ]
        found = [INTEGERS[meaning](values, *plain)]
    return [word & ((1 << width) - 1) for word, width in zip(found, widths, strict=True)]
