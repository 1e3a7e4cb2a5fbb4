"""Moves, bit operations, comparison, selection, conversion."""

from __future__ import annotations

from .row import Row
from .rules import compare, only

__all__ = ["ROWS"]

AB, A = "=d:$type a:$type b:$type", "=d:$type a:$type"
FTZ_F32 = only("ftz", type=("f32", "f16", "f16x2"))
COMPARED = "@word|f16|bf16@7.8@sm_90"
BOOL = "{.bool!:and|or|xor}"

ROWS = (
    Row("mov", "mov{.type:pred|@word|b128@8.3@sm_70}", A),
    Row(
        "mov.pack", "mov{.type!:b32|b64|b128@8.3@sm_70}{~num:2|4=2}", "=d:$type a:part*$num",
        doc="The first element is the lowest.",
    ),
    Row(
        "mov.unpack", "mov{.type!:b32|b64|b128@8.3@sm_70}{~num:2|4=2}", "=d:part*$num a:$type",
        doc="The first element is the lowest.",
    ),
    Row("and", "and{.type:pred|@bits}", AB),
    Row("or", "or{.type:pred|@bits}", AB),
    Row("xor", "xor{.type:pred|@bits}", AB),
    Row("not", "not{.type:pred|@bits}", A),
    Row("cnot", "cnot{.type:@bits}", A),
    Row("shl", "shl{.type:@bits}", "=d:$type a:$type b:u32"),
    Row("shr", "shr{.type:@bits|@int}", "=d:$type a:$type b:u32"),
    Row("shf", "shf{.dir!:l|r}{.mode!:clamp|wrap}.b32", "=d:b32 low:b32 high:b32 shift:u32", "3.1"),
    Row("bfe", "bfe{.type:u32|u64|s32|s64}", "=d:$type a:$type position:u32 length:u32", "2.0"),
    Row("bfi", "bfi{.type:b32|b64}", "=d:$type a:$type b:$type position:u32 length:u32", "2.0"),
    Row("brev", "brev{.type:b32|b64}", A, "2.0"),
    Row("clz", "clz{.type:b32|b64}", "=d:u32 a:$type", "2.0"),
    Row("popc", "popc{.type:b32|b64}", "=d:u32 a:$type", "2.0"),
    Row("bfind", "bfind{.shiftamt}{.type:u32|u64|s32|s64}", "=d:u32 a:$type", "2.0"),
    Row("fns", "fns.b32", "=d:b32 mask:b32 base:b32 offset:s32", "6.0"),
    Row("bmsk", "bmsk{.mode!:clamp|wrap}.b32", "=d:b32 a:u32 b:u32", "7.6", "sm_70"),
    Row("szext", "szext{.mode!:clamp|wrap}{.type:u32|s32}", "=d:$type a:$type b:u32", "7.6", "sm_70"),
    Row("prmt", "prmt.b32{.mode:f4e|b4e|rc8|ecl|ecr|rc16}", "=d:b32 a:b32 b:b32 selector:b32", "2.0"),
    Row("lop3", "lop3.b32", "=d:b32 a:b32 b:b32 c:b32 #table[0,255]", "4.3"),
    Row("lop3.dual", "lop3{.bool!:and|or}.b32", "=d:b32|p:pred a:b32 b:b32 c:b32 #table[0,255] q:pred", "8.2", "sm_70"),
    Row("selp", "selp{.type:@word}", "=d:$type a:$type b:$type c:pred"),
    Row(
        "slct", "slct{.ftz}{.type:@word}{.src!:s32|f32}", "=d:$type a:$type b:$type c:$src",
        rules=(only("ftz", src=("f32",)),),
    ),
    Row("setp", f"setp{{.cmp!:@cmp}}{{.ftz}}{{.type:{COMPARED}}}", "=p:pred a:$type b:$type", rules=(compare, FTZ_F32)),
    Row(
        "setp", f"setp{{.cmp!:@cmp}}{BOOL}{{.ftz}}{{.type:{COMPARED}}}", "=p:pred a:$type b:$type c:pred",
        rules=(compare, FTZ_F32),
    ),
    Row(
        "setp.dual", "setp{.cmp!:@cmp}{.ftz}{.type:@word|f16x2|bf16x2@7.8@sm_90}",
        "=p:pred|q:pred a:$type b:$type", rules=(compare, FTZ_F32),
    ),
    Row(
        "setp.dual", f"setp{{.cmp!:@cmp}}{BOOL}{{.ftz}}{{.type:@word|f16x2|bf16x2@7.8@sm_90}}",
        "=p:pred|q:pred a:$type b:$type c:pred", rules=(compare, FTZ_F32),
    ),
    Row(
        "set", "set{.cmp!:@cmp}{.ftz}{.dtype!:u32|s32|f32}{.type:@word}", "=d:$dtype a:$type b:$type",
        rules=(compare, FTZ_F32),
    ),
    Row(
        "set", f"set{{.cmp!:@cmp}}{BOOL}{{.ftz}}{{.dtype!:u32|s32|f32}}{{.type:@word}}",
        "=d:$dtype a:$type b:$type c:pred", rules=(compare, FTZ_F32),
    ),
)  # fmt: skip
