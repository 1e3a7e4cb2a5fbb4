"""Conversions: one value, or several packed into one register."""

from __future__ import annotations

from collections.abc import Mapping

from .row import Requirement, Row, Value
from .rules import Verdict

__all__ = ["ROWS"]

INTS = "u8|s8|u16|s16|u32|s32|u64|s64"
TO_INT = "{.rnd!:rni|rzi|rmi|rpi}"
D, FP8, FP6 = "=d~$type a~$src", "e4m3x2|e5m2x2", "e2m3x2|e3m2x2"
BF16 = Requirement((7, 8), "sm_90")

FLOAT_PAIRS = {
    # rounding needed: (type, src)
    False: {("f32", "f16"), ("f32", "bf16"), ("f64", "f16"), ("f64", "bf16"), ("f64", "f32")},
    True: {("f16", "bf16"), ("f16", "f32"), ("f16", "f64"), ("bf16", "f16"), ("bf16", "f32"),
           ("bf16", "f64"), ("f32", "f64")},
}  # fmt: skip


def _narrows(values: Mapping[str, Value]) -> Verdict:
    """Saturation between integers: only where the source has values that the result cannot hold."""
    to, of = str(values["type"]), str(values["src"])
    low, high = _range(to)
    source_low, source_high = _range(of)
    return f"sat has no meaning from {of} to {to}" if low <= source_low and source_high <= high else None


def _range(name: str) -> tuple[int, int]:
    bits = int(name[1:])
    return (0, (1 << bits) - 1) if name[0] == "u" else (-(1 << (bits - 1)), (1 << (bits - 1)) - 1)


def _int_and_float(values: Mapping[str, Value]) -> Verdict:
    """bf16 converts to and from integers of 16 bits and more, without saturation; ftz concerns f32 sources."""
    pair = (str(values["type"]), str(values["src"]))
    if values.get("ftz") and pair[1] != "f32":
        return f"ftz goes with src 'f32', got {pair[1]!r}"
    if "bf16" not in pair:
        return None
    if values.get("sat") or any(p in ("u8", "s8") for p in pair):
        return f"bf16 has no {'saturating' if values.get('sat') else '8-bit'} integer conversion"
    return BF16


def _floats(values: Mapping[str, Value]) -> Verdict:
    """Which pairs convert with rounding, which exactly, and what ftz and sat go with."""
    pair, rounds = (str(values["type"]), str(values["src"])), bool(values.get("rnd"))
    if pair not in FLOAT_PAIRS[rounds]:
        return (
            f"{pair[1]} to {pair[0]} " + ("takes no rounding" if rounds else "needs rnd")
            if pair[0] != pair[1]
            else "the types are equal"
        )
    if values.get("ftz") and ("f32" not in pair or (rounds and pair == ("f16", "f64"))):
        return "ftz goes with f32"
    if values.get("sat") and "bf16" in pair:
        return "bf16 has no saturating conversion"
    return BF16 if pair[1] == "bf16" or pair in (("bf16", "f16"), ("bf16", "f64")) else None


def _same(values: Mapping[str, Value]) -> Verdict:
    """Rounding to an integral value stays in one type."""
    kind = values["type"]
    if kind != values["src"]:
        return f"{values['rnd']} rounds within one type"
    if values.get("ftz") and kind != "f32":
        return "ftz goes with f32"
    if values.get("sat") and kind == "bf16":
        return "bf16 has no saturating conversion"
    return BF16 if kind == "bf16" else None


def _clamps(values: Mapping[str, Value]) -> Verdict:
    return None if values.get("relu") or values.get("satfinite") else "one of relu and satfinite is given"


def _tf32(values: Mapping[str, Value]) -> Verdict:
    if values["rnd"] == "rna":
        return "rna takes no relu" if values.get("relu") else None
    if values.get("satfinite"):
        return Requirement((8, 6), "sm_100")
    return BF16


ROWS = (
    Row("cvt", f"cvt{{.type!:{INTS}}}{{.src!:{INTS}}}", D, meaning="cvt.int"),
    Row("cvt", f"cvt{{.sat!}}{{.type!:{INTS}}}{{.src!:{INTS}}}", D, rules=(_narrows,), meaning="cvt.int"),
    Row(
        "cvt", f"cvt{{.rnd!:@frnd}}{{.sat}}{{.type!:@half|@float}}{{.src!:{INTS}}}", D, rules=(_int_and_float,),
        meaning="cvt.float_from_int",
    ),
    Row(
        "cvt", f"cvt{TO_INT}{{.ftz}}{{.sat}}{{.type!:{INTS}}}{{.src!:@half|@float}}", D, rules=(_int_and_float,),
        meaning="cvt.int_from_float",
    ),
    Row(
        "cvt", "cvt{.ftz}{.sat}{.type!:@float}{.src!:@half|f32}", "=d:$type a:$src", rules=(_floats,),
        meaning="cvt.float",
    ),
    Row(
        "cvt", "cvt{.rnd!:@frnd}{.ftz}{.sat}{.type!:@half|f32}{.src!:@half|@float}", "=d:$type a:$src",
        rules=(_floats,), meaning="cvt.float",
    ),
    Row(
        "cvt", f"cvt{TO_INT}{{.ftz}}{{.sat}}{{.type!:@half|@float}}{{.src!:@half|@float}}", "=d:$type a:$src",
        rules=(_same,), meaning="cvt.round",
    ),
    Row(
        "cvt", "cvt{.rnd!:rn|rz}{.relu}{.satfinite@8.1}{.type!:@half}{.src!:f32}", "=d:$type a:$src", "7.0", "sm_80",
        rules=(_clamps,), meaning="cvt.float",
    ),
    Row(
        "cvt", "cvt{.rnd!:rna|rn|rz}{.satfinite@8.1}{.relu}{.type!:tf32}{.src!:f32}", "=d:$type a:$src", "7.0",
        "sm_80", rules=(_tf32,), meaning="cvt.tf32",
    ),
    Row(
        "cvt", f"cvt{{.rnd!:rn}}{{.relu}}{{.type!:f16x2}}{{.src!:{FP8}}}", "=d:$type a:$src", "8.1", "sm_90",
        meaning="cvt.float",
    ),
    Row(
        "cvt", f"cvt{{.rnd!:rn}}{{.relu}}{{.type!:f16x2}}{{.src!:{FP6}|e2m1x2}}", "=d:$type a:$src", "8.6", "sm_100a",
        meaning="cvt.float",
    ),
    Row(
        "cvt", f"cvt{{.rnd!:rn}}{{.satfinite!}}{{.relu}}{{.type!:{FP8}}}{{.src!:f16x2}}", "=d:$type a:$src", "8.1",
        "sm_90", meaning="cvt.float",
    ),
    Row("cvt", "cvt{.rnd!:rn}{.type!:bf16x2}{.src!:ue8m0x2}", "=d:$type a:$src", "8.6", "sm_100a", meaning="cvt.float"),
    Row(
        "cvt", "cvt{.rnd!:rz|rp}{.satfinite}{.type!:ue8m0x2}{.src!:bf16x2}", "=d:$type a:$src", "8.6", "sm_100a",
        meaning="cvt.float",
    ),
    Row(
        "cvt.pack", "cvt{.rnd!:rn|rz}{.relu}{.satfinite@8.1}{.type!:@half2}.f32", "=d:$type hi:f32 lo:f32", "7.0",
        "sm_80",
    ),
    Row(
        "cvt.pack", f"cvt{{.rnd!:rn}}{{.satfinite!}}{{.relu}}{{.type!:{FP8}}}.f32", "=d:$type hi:f32 lo:f32", "8.1",
        "sm_90",
    ),
    Row(
        "cvt.pack", f"cvt{{.rnd!:rn}}{{.satfinite!}}{{.relu}}{{.type!:{FP6}|e2m1x2}}.f32", "=d:$type hi:f32 lo:f32",
        "8.6", "sm_100a",
    ),
    Row("cvt.pack", "cvt{.rnd!:rz|rp}{.satfinite}{.type!:ue8m0x2}.f32", "=d:$type hi:f32 lo:f32", "8.6", "sm_100a"),
    Row(
        "cvt.pack", "cvt{.rnd!:rs}{.relu}{.satfinite}{.type!:@half2}.f32", "=d:$type hi:f32 lo:f32 bits:b32", "8.7",
        "sm_100a",
    ),
    Row(
        "cvt.pack4", "cvt{.rnd!:rs}{.relu}{.satfinite!}{.type!:e4m3x4|e5m2x4|e2m3x4|e3m2x4|e2m1x4}.f32",
        "=d:$type a:f32*4 bits:b32", "8.7", "sm_100a", meaning="cvt.pack",
    ),
    Row(
        "cvt.pack", "cvt.pack{.sat!}{.type!:u16|s16}.s32", "=d:b32 hi:s32 lo:s32", "6.5", "sm_72",
        meaning="cvt.pack.int",
    ),
    Row(
        "cvt.pack", "cvt.pack{.sat!}{.type!:u8|s8}.s32.b32", "=d:b32 hi:s32 lo:s32 upper:b32", "6.5", "sm_72",
        meaning="cvt.pack.int",
    ),
)  # fmt: skip
