"""Integer, floating and packed arithmetic."""

from __future__ import annotations

from collections.abc import Mapping

from .row import Requirement, Row, Value
from .rules import Verdict, only

__all__ = ["ROWS"]

AB, ABC, A = "=d:$type a:$type b:$type", "=d:$type a:$type b:$type c:$type", "=d:$type a:$type"
FLOATS = "{.type:f32|f64|f16|f16x2|bf16|bf16x2|f32x2}"
HALVES = ("f16", "f16x2", "bf16", "bf16x2")
CARRIES = ("u32", "s32", "u64", "s64")

HALF, BF16, PACKED = Requirement((4, 2), "sm_53"), Requirement((7, 8), "sm_90"), Requirement((8, 6), "sm_100")
AMPERE = Requirement((7, 0), "sm_80")
NEEDS = {"f16": HALF, "f16x2": HALF, "bf16": BF16, "bf16x2": BF16, "f32x2": PACKED}


def _float(values: Mapping[str, Value]) -> Verdict:
    """add, sub, mul, fma: which flags each floating type has."""
    kind = str(values["type"])
    if kind in HALVES and values.get("rnd") not in (None, "rn"):
        return f"{kind} rounds to nearest: rnd is 'rn', got {values['rnd']!r}"
    if values.get("ftz") and kind not in ("f32", "f32x2", "f16", "f16x2"):
        return f"{kind} has no ftz"
    if values.get("sat") and kind not in ("f32", "f16", "f16x2"):
        return f"{kind} has no sat"
    if values.get("relu"):
        if kind not in HALVES or values.get("sat"):
            return f"relu goes with {', '.join(HALVES)} and without sat"
        return AMPERE
    return AMPERE if "relu" in values and kind.startswith("bf16") else NEEDS.get(kind)


def _min_max_float(values: Mapping[str, Value]) -> Verdict:
    kind = str(values["type"])
    if kind == "f64":
        return "f64 has no flags here" if any(values.get(n) for n in ("ftz", "NaN", "xorsign.abs")) else None
    if values.get("ftz") and kind.startswith("bf16"):
        return f"{kind} has no ftz"
    return AMPERE if kind in HALVES else None


def _sign_float(values: Mapping[str, Value]) -> Verdict:
    kind = str(values["type"])
    if values.get("ftz") and kind not in ("f32", "f16", "f16x2"):
        return f"{kind} has no ftz"
    return AMPERE if kind.startswith("bf16") else Requirement((6, 5), "sm_53") if kind.startswith("f16") else None


def _ex2(values: Mapping[str, Value]) -> Verdict:
    kind = str(values["type"])
    if kind.startswith("bf16"):
        return BF16 if values.get("ftz") else f"{kind} needs ftz=True"
    if kind.startswith("f16"):
        return f"{kind} has no ftz" if values.get("ftz") else Requirement((7, 0), "sm_75")
    return None


def _approximate_f64(values: Mapping[str, Value]) -> Verdict:
    return "f64 needs ftz=True" if values["type"] == "f64" and not values.get("ftz") else None


def _add_sub(op: str) -> tuple[Row, ...]:
    """add and sub have the same forms."""
    return (
        Row(op, op + "{.type:@int}", AB),
        Row(op, op + "{.sat}{.type:s32}", AB),
        Row(op, op + "{.rnd:@frnd}{.ftz}{.sat}" + FLOATS, AB, rules=(_float,), meaning=op + ".float"),
        Row(op + ".mixed", op + "{.rnd:@frnd}{.sat}.f32{.type:f16|bf16}", "=d:f32 a:$type c:f32", "8.6", "sm_100"),
        Row(op + ".cc", op + ".cc{.type:u32|s32|u64|s64}", AB, "1.2"),
        Row(op + "c", op + "c{.cc}{.type:u32|s32|u64|s64}", AB, "1.2"),
    )


def _min_max(op: str) -> tuple[Row, ...]:
    flags = "{.ftz}{.NaN@7.0@sm_80}{.xorsign.abs@7.2@sm_86}"
    return (
        Row(op, op + "{.type:@int|u16x2@8.0@sm_90|s16x2@8.0@sm_90}", AB),
        Row(op, op + "{.relu}{.type:s16x2|s32}", AB, "8.0", "sm_90"),
        Row(op, op + flags + "{.type:f32|f64|@half|@half2}", AB, rules=(_min_max_float,), meaning=op + ".float"),
        Row(op, op + "{.ftz}{.NaN}{.abs}{.type:f32}", ABC, "8.8", "sm_100", meaning=op + ".float"),
    )


def _sign(op: str) -> tuple[Row, ...]:
    """abs and neg have the same forms."""
    return (
        Row(op, op + "{.type:s16|s32|s64}", A),
        Row(op, op + "{.ftz}{.type:f32|f64|@half|@half2}", A, rules=(_sign_float,), meaning=op + ".float"),
    )


ROWS = (
    *_add_sub("add"),
    *_add_sub("sub"),
    Row("mul", "mul{.rnd:@frnd}{.ftz}{.sat}" + FLOATS, AB, rules=(_float,), meaning="mul.float"),
    Row("mul.lo", "mul.lo{.type:@int}", AB),
    Row("mul.hi", "mul.hi{.type:@int}", AB),
    Row("mul.wide", "mul.wide{.type:u16|s16|u32|s32}", "=d:$type^2 a:$type b:$type"),
    Row("mul24", "mul24{.half!:lo|hi}{.type:u32|s32}", AB),
    Row("mad.lo", "mad.lo{.cc}{.type:@int}", ABC, rules=(only("cc", type=CARRIES),)),
    Row(
        "mad.hi", "mad.hi{.sat}{.cc}{.type:@int}", ABC,
        rules=(only("sat", type=("s32",), cc=(False,)), only("cc", type=CARRIES)),
    ),
    Row("mad.wide", "mad.wide{.type:u16|s16|u32|s32}", "=d:$type^2 a:$type b:$type c:$type^2"),
    Row("mad24", "mad24{.half!:lo|hi}{.sat}{.type:u32|s32}", ABC, rules=(only("sat", type=("s32",), half=("hi",)),)),
    Row("madc", "madc{.half!:lo|hi}{.cc}{.type:u32|s32|u64|s64}", ABC, "3.0"),
    Row("sad", "sad{.type:@int}", ABC),
    Row("dp4a", "dp4a{.atype!:u32|s32}{.btype!:u32|s32}", "=d:b32 a:$atype b:$btype c:b32", "5.0", "sm_61"),
    Row(
        "dp2a", "dp2a{.half!:lo|hi}{.atype!:u32|s32}{.btype!:u32|s32}", "=d:b32 a:$atype b:$btype c:b32", "5.0",
        "sm_61",
    ),
    Row("fma", "fma{.rnd!:@frnd}{.ftz}{.sat}{.relu}" + FLOATS, ABC, rules=(_float,)),
    Row("fma", "fma{.rnd!:rn}{.oob!}{.relu}{.type:@half|@half2}", ABC, "8.1", "sm_90", meaning="fma.oob"),
    Row("fma.mixed", "fma{.rnd!:@frnd}{.sat}.f32{.type:f16|bf16}", "=d:f32 a:$type b:$type c:f32", "8.6", "sm_100"),
    Row("div", "div{.type:@int}", AB),
    Row("div", "div{.rnd!:@frnd}{.ftz}{.type:f32|f64}", AB, rules=(only("ftz", type=("f32",)),), meaning="div.float"),
    Row("div.approx", "div.approx{.ftz}{.type:f32}", AB),
    Row("div.full", "div.full{.ftz}{.type:f32}", AB),
    Row("rem", "rem{.type:@int}", AB),
    *_min_max("min"),
    *_min_max("max"),
    *_sign("abs"),
    *_sign("neg"),
    Row("copysign", "copysign{.type:f32|f64}", AB, "2.0"),
    Row(
        "testp", "testp{.op!:finite|infinite|number|notanumber|normal|subnormal}{.type:f32|f64}", "=p:pred a:$type",
        "2.0",
    ),
    Row("rcp", "rcp{.rnd!:@frnd}{.ftz}{.type:f32|f64}", A, rules=(only("ftz", type=("f32",)),)),
    Row("rcp.approx", "rcp.approx{.ftz}{.type:f32|f64}", A, rules=(_approximate_f64,)),
    Row("sqrt", "sqrt{.rnd!:@frnd}{.ftz}{.type:f32|f64}", A, rules=(only("ftz", type=("f32",)),)),
    Row("sqrt.approx", "sqrt.approx{.ftz}{.type:f32}", A),
    Row("rsqrt.approx", "rsqrt.approx{.ftz}{.type:f32|f64}", A),
    Row("sin.approx", "sin.approx{.ftz}{.type:f32}", A),
    Row("cos.approx", "cos.approx{.ftz}{.type:f32}", A),
    Row("lg2.approx", "lg2.approx{.ftz}{.type:f32}", A),
    Row("ex2.approx", "ex2.approx{.ftz}{.type:f32|@half|@half2}", A, rules=(_ex2,)),
    Row("tanh.approx", "tanh.approx{.type:f32|f16|f16x2|bf16@7.8@sm_90|bf16x2@7.8@sm_90}", A, "7.0", "sm_75"),
)  # fmt: skip
