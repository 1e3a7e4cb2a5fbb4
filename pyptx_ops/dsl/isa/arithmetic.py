"""Integer, floating and packed arithmetic."""

from __future__ import annotations

from .row import Row
from .rules import only

__all__ = ["ROWS"]

AB, ABC, A = "=d:$type a:$type b:$type", "=d:$type a:$type b:$type c:$type", "=d:$type a:$type"
MINMAX_FLAGS = "{.NaN@7.0@sm_80}{.xorsign.abs@7.2@sm_86}"


def _add_sub(op: str) -> tuple[Row, ...]:
    """add and sub have the same forms."""
    return (
        Row(op, op + "{.type:@int}", AB, meaning=op),
        Row(op, op + "{.sat}{.type:s32}", AB, meaning=op),
        Row(op, op + "{.rnd:@frnd}{.ftz}{.sat}{.type:f32}", AB, meaning=op + ".float"),
        Row(op, op + "{.rnd:@frnd}{.type:f64}", AB, meaning=op + ".float"),
        Row(op, op + "{.rnd:rn}{.ftz}{.sat}{.type:f16|f16x2}", AB, since="4.2", target="sm_53", meaning=op + ".half"),
        Row(op, op + "{.rnd:rn}{.type:bf16|bf16x2}", AB, since="7.8", target="sm_90", meaning=op + ".half"),
        Row(op, op + "{.rnd:@frnd}{.ftz}{.type:f32x2}", AB, since="8.6", target="sm_100", meaning=op + ".float"),
        Row(op + ".mixed", op + "{.rnd:@frnd}{.sat}.f32{.type:f16|bf16}", "=d:f32 a:$type c:f32", since="8.6", target="sm_100", meaning=op + ".mixed"),
        Row(op + ".cc", op + ".cc{.type:u32|s32|u64|s64}", AB, since="1.2", meaning=op + ".cc"),
        Row(op + "c", op + "c{.cc}{.type:u32|s32|u64|s64}", AB, since="1.2", meaning=op + "c"),
    )  # fmt: skip


def _min_max(op: str) -> tuple[Row, ...]:
    return (
        Row(op, op + "{.type:@int|u16x2@8.0@sm_90|s16x2@8.0@sm_90}", AB, meaning=op),
        Row(op, op + "{.relu}{.type:s16x2|s32}", AB, since="8.0", target="sm_90", meaning=op),
        Row(op, op + "{.ftz}" + MINMAX_FLAGS + "{.type:f32}", AB, meaning=op + ".float"),
        Row(op, op + "{.type:f64}", AB, meaning=op + ".float"),
        Row(op, op + "{.ftz}" + MINMAX_FLAGS + "{.type:f16|f16x2}", AB, since="7.0", target="sm_80", meaning=op + ".half"),
        Row(op, op + MINMAX_FLAGS + "{.type:bf16|bf16x2}", AB, since="7.0", target="sm_80", meaning=op + ".half"),
        Row(op, op + "{.ftz}{.NaN}{.abs}{.type:f32}", ABC, since="8.8", target="sm_100", meaning=op + "3"),
    )  # fmt: skip


def _sign(op: str) -> tuple[Row, ...]:
    """abs and neg have the same forms."""
    return (
        Row(op, op + "{.type:s16|s32|s64}", A, meaning=op),
        Row(op, op + "{.ftz}{.type:f32|f64}", A, rules=(only("ftz", type=("f32",)),), meaning=op + ".float"),
        Row(op, op + "{.ftz}{.type:f16|f16x2}", A, since="6.5", target="sm_53", meaning=op + ".half"),
        Row(op, op + "{.type:bf16|bf16x2}", A, since="7.0", target="sm_80", meaning=op + ".half"),
    )


ROWS = (
    *_add_sub("add"),
    *_add_sub("sub"),
    Row("mul", "mul{.rnd:@frnd}{.ftz}{.sat}{.type:f32}", AB, meaning="mul.float"),
    Row("mul", "mul{.rnd:@frnd}{.type:f64}", AB, meaning="mul.float"),
    Row("mul", "mul{.rnd:rn}{.ftz}{.sat}{.type:f16|f16x2}", AB, since="4.2", target="sm_53", meaning="mul.half"),
    Row("mul", "mul{.rnd:rn}{.type:bf16|bf16x2}", AB, since="7.8", target="sm_90", meaning="mul.half"),
    Row("mul", "mul{.rnd:@frnd}{.ftz}{.type:f32x2}", AB, since="8.6", target="sm_100", meaning="mul.float"),
    Row("mul.lo", "mul.lo{.type:@int}", AB, meaning="mul.lo"),
    Row("mul.hi", "mul.hi{.type:@int}", AB, meaning="mul.hi"),
    Row("mul.wide", "mul.wide{.type:u16|s16|u32|s32}", "=d:$type^2 a:$type b:$type", meaning="mul.wide"),
    Row("mul24", "mul24{.half!:lo|hi}{.type:u32|s32}", AB, meaning="mul24"),
    Row("mad.lo", "mad.lo{.cc}{.type:@int}", ABC, rules=(only("cc", type=("u32", "s32", "u64", "s64")),), meaning="mad.lo"),
    Row("mad.hi", "mad.hi{.sat}{.cc}{.type:@int}", ABC, rules=(only("sat", type=("s32",), cc=(False, None)), only("cc", type=("u32", "s32", "u64", "s64"))), meaning="mad.hi"),
    Row("mad.wide", "mad.wide{.type:u16|s16|u32|s32}", "=d:$type^2 a:$type b:$type c:$type^2", meaning="mad.wide"),
    Row("mad24", "mad24{.half!:lo|hi}{.sat}{.type:u32|s32}", ABC, rules=(only("sat", type=("s32",), half=("hi",)),), meaning="mad24"),
    Row("madc", "madc{.half!:lo|hi}{.cc}{.type:u32|s32|u64|s64}", ABC, since="3.0", meaning="madc"),
    Row("sad", "sad{.type:@int}", ABC, meaning="sad"),
    Row("dp4a", "dp4a{.atype!:u32|s32}{.btype!:u32|s32}", "=d:b32 a:$atype b:$btype c:b32", since="5.0", target="sm_61", meaning="dp4a"),
    Row("dp2a", "dp2a{.half!:lo|hi}{.atype!:u32|s32}{.btype!:u32|s32}", "=d:b32 a:$atype b:$btype c:b32", since="5.0", target="sm_61", meaning="dp2a"),
    Row("fma", "fma{.rnd!:@frnd}{.ftz}{.sat}{.type:f32}", ABC, meaning="fma"),
    Row("fma", "fma{.rnd!:@frnd}{.type:f64}", ABC, meaning="fma"),
    Row("fma", "fma{.rnd!:rn}{.ftz}{.sat}{.relu@7.0@sm_80}{.type:f16|f16x2}", ABC, since="4.2", target="sm_53", rules=(only("sat", relu=(False, None)),), meaning="fma.half"),
    Row("fma", "fma{.rnd!:rn}{.relu}{.type:bf16|bf16x2}", ABC, since="7.0", target="sm_80", meaning="fma.half"),
    Row("fma", "fma{.rnd!:rn}{.oob!}{.relu}{.type:@half|@half2}", ABC, since="8.1", target="sm_90", meaning="fma.oob"),
    Row("fma", "fma{.rnd!:@frnd}{.ftz}{.type:f32x2}", ABC, since="8.6", target="sm_100", meaning="fma"),
    Row("fma.mixed", "fma{.rnd!:@frnd}{.sat}.f32{.type:f16|bf16}", "=d:f32 a:$type b:$type c:f32", since="8.6", target="sm_100", meaning="fma.mixed"),
    Row("div", "div{.type:@int}", AB, meaning="div"),
    Row("div", "div{.rnd!:@frnd}{.ftz}{.type:f32}", AB, meaning="div.float"),
    Row("div", "div{.rnd!:@frnd}{.type:f64}", AB, meaning="div.float"),
    Row("div.approx", "div.approx{.ftz}{.type:f32}", AB, meaning="div.approx"),
    Row("div.full", "div.full{.ftz}{.type:f32}", AB, meaning="div.full"),
    Row("rem", "rem{.type:@int}", AB, meaning="rem"),
    *_min_max("min"),
    *_min_max("max"),
    *_sign("abs"),
    *_sign("neg"),
    Row("copysign", "copysign{.type:f32|f64}", AB, since="2.0", meaning="copysign"),
    Row("testp", "testp{.op!:finite|infinite|number|notanumber|normal|subnormal}{.type:f32|f64}", "=p:pred a:$type", since="2.0", meaning="testp"),
    Row("rcp", "rcp{.rnd!:@frnd}{.ftz}{.type:f32|f64}", A, rules=(only("ftz", type=("f32",)),), meaning="rcp"),
    Row("rcp.approx", "rcp.approx{.ftz}{.type:f32}", A, meaning="rcp.approx"),
    Row("rcp.approx", "rcp.approx{.ftz!}{.type:f64}", A, meaning="rcp.approx"),
    Row("sqrt", "sqrt{.rnd!:@frnd}{.ftz}{.type:f32|f64}", A, rules=(only("ftz", type=("f32",)),), meaning="sqrt"),
    Row("sqrt.approx", "sqrt.approx{.ftz}{.type:f32}", A, meaning="sqrt.approx"),
    Row("rsqrt.approx", "rsqrt.approx{.ftz}{.type:f32|f64}", A, meaning="rsqrt.approx"),
    Row("sin.approx", "sin.approx{.ftz}{.type:f32}", A, meaning="sin"),
    Row("cos.approx", "cos.approx{.ftz}{.type:f32}", A, meaning="cos"),
    Row("lg2.approx", "lg2.approx{.ftz}{.type:f32}", A, meaning="lg2"),
    Row("ex2.approx", "ex2.approx{.ftz}{.type:f32}", A, meaning="ex2"),
    Row("ex2.approx", "ex2.approx{.type:f16|f16x2}", A, since="7.0", target="sm_75", meaning="ex2.half"),
    Row("ex2.approx", "ex2.approx{.ftz!}{.type:bf16|bf16x2}", A, since="7.8", target="sm_90", meaning="ex2.half"),
    Row("tanh.approx", "tanh.approx{.type:f32|@half|@half2}", A, since="7.8", target="sm_90", meaning="tanh"),
)  # fmt: skip
