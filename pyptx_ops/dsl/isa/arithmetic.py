"""Moves, integer, floating and packed arithmetic, comparison, conversion."""

from __future__ import annotations

from .row import Row

__all__ = ["ROWS"]

ROWS = (
    Row("mov", "mov{.type:pred|@word|b128@8.3}", "=d:$type a:$type", meaning="mov"),
    Row("add", "add{.type:@int}", "=d:$type a:$type b:$type", meaning="add"),
    Row("add", "add{.rnd:@frnd}{.ftz}{.sat}{.type:@float}", "=d:$type a:$type b:$type", meaning="add.float"),
    Row("sub", "sub{.type:@int}", "=d:$type a:$type b:$type", meaning="sub"),
    Row("sub", "sub{.rnd:@frnd}{.ftz}{.sat}{.type:@float}", "=d:$type a:$type b:$type", meaning="sub.float"),
    Row("mul", "mul{.rnd:@frnd}{.ftz}{.sat}{.type:@float}", "=d:$type a:$type b:$type", meaning="mul.float"),
    Row("mul.lo", "mul.lo{.type:@int}", "=d:$type a:$type b:$type", meaning="mul.lo"),
    Row("mul.wide", "mul.wide{.type:u16|s16|u32|s32}", "=d:$type^2 a:$type b:$type", meaning="mul.wide"),
    Row("fma", "fma{.rnd!:@frnd}{.ftz}{.sat}{.type:@float}", "=d:$type a:$type b:$type c:$type", meaning="fma"),
    Row("div", "div{.type:@int}", "=d:$type a:$type b:$type", meaning="div"),
    Row("rem", "rem{.type:@int}", "=d:$type a:$type b:$type", meaning="rem"),
    Row("min", "min{.type:@int}", "=d:$type a:$type b:$type", meaning="min"),
    Row("max", "max{.type:@int}", "=d:$type a:$type b:$type", meaning="max"),
    Row("neg", "neg{.type:s16|s32|s64}", "=d:$type a:$type", meaning="neg"),
    Row("and", "and{.type:pred|@bits}", "=d:$type a:$type b:$type", meaning="and"),
    Row("or", "or{.type:pred|@bits}", "=d:$type a:$type b:$type", meaning="or"),
    Row("xor", "xor{.type:pred|@bits}", "=d:$type a:$type b:$type", meaning="xor"),
    Row("not", "not{.type:pred|@bits}", "=d:$type a:$type", meaning="not"),
    Row("shl", "shl{.type:@bits}", "=d:$type a:$type b:u32", meaning="shl"),
    Row("shr", "shr{.type:@bits|@int}", "=d:$type a:$type b:u32", meaning="shr"),
    Row("selp", "selp{.type:@word}", "=d:$type a:$type b:$type c:pred", meaning="selp"),
    Row("setp", "setp{.cmp!:@cmp}{.ftz}{.type:@word}", "=p:pred a:$type b:$type", meaning="setp"),
    Row("cvt", "cvt{.type!:u32|u64|s32|s64}{.src!:u32|u64|s32|s64}", "=d:$type a:$src", meaning="cvt.int"),
    Row("cvt.pack", "cvt{.rnd!:rn|rz}{.relu}{.type!:@half2}.f32", "=d:$type hi:f32 lo:f32", target="sm_80", since="7.0", meaning="cvt.pack"),
)
