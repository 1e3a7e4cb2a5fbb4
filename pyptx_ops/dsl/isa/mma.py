"""Matrix instructions: wgmma, mma.sync, ldmatrix, stmatrix, movmatrix."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from .row import COUNTS, DERIVED, Requirement, Row, Value
from .rules import Verdict

__all__ = ["ROWS", "accumulator_registers"]

BITS = {
    "f64": 64, "f32": 32, "s32": 32, "tf32": 32, "f16": 16, "bf16": 16, "e4m3": 8, "e5m2": 8, "s8": 8, "u8": 8, "s4": 4,
    "u4": 4, "b1": 1,
}  # fmt: skip


def _sizes(values: Mapping[str, Value]) -> tuple[int, int, int]:
    m, n, k = re.findall(r"\d+", str(values["shape"]))
    return int(m), int(n), int(k)


def accumulator_registers(values: Mapping[str, Value]) -> int:
    """Registers per thread of a wgmma accumulator: N/2, or N/4 where two f16 share one."""
    n = _sizes(values)[1]
    return n // 4 if values["dtype"] == "f16" else n // 2


def _fragment(elements: int, dtype: str) -> int:
    """Registers per lane of a fragment of `elements` elements spread over a warp."""
    return elements * BITS[dtype] // (32 * max(BITS[dtype], 32))


def _a(values: Mapping[str, Value]) -> int:
    m, _, k = _sizes(values)
    return _fragment(m * k, str(values["atype"]))


def _a_sparse(values: Mapping[str, Value]) -> int:
    m, _, k = _sizes(values)
    return _fragment(m * k // 2, str(values["atype"]))


def _b(values: Mapping[str, Value]) -> int:
    _, n, k = _sizes(values)
    return _fragment(n * k, str(values.get("btype") or values["atype"]))


def _d(values: Mapping[str, Value]) -> int:
    m, n, _ = _sizes(values)
    return _fragment(m * n, str(values["dtype"]))


def _c(values: Mapping[str, Value]) -> int:
    m, n, _ = _sizes(values)
    return _fragment(m * n, str(values["ctype"]))


def _m16n16(values: Mapping[str, Value]) -> int:
    """Two registers per 16x16 matrix of bytes."""
    return 2 * int(str(values["num"])[1:])


def _selector(values: Mapping[str, Value]) -> int:
    """The highest selector: how many groups of threads could hold the metadata of one instruction."""
    bits = _sizes(values)[2] * BITS[str(values["atype"])]
    return {256: 3, 512: 1}[bits] if BITS[str(values["atype"])] > 8 else {256: 1, 512: 0}[bits]


def _wgmma_selector(values: Mapping[str, Value]) -> int:
    return 1 if BITS[str(values["atype"])] > 8 else 0


COUNTS |= {
    "mma_selector": _selector,
    "wgmma_selector": _wgmma_selector,
    "ldmatrix_m16n16": _m16n16,
    "accumulator": accumulator_registers,
    "mma_a": _a,
    "mma_sp_a": _a_sparse,
    "mma_b": _b,
    "mma_c": _c,
    "mma_d": _d,
}
DERIVED |= {
    "d_word": lambda values: "f16x2" if values["dtype"] == "f16" else str(values["dtype"]),
    "c_word": lambda values: "f16x2" if values["ctype"] == "f16" else str(values["ctype"]),
    "b_word": lambda values: "f64" if values["atype"] == "f64" else "b32",
}


# -- wgmma -------------------------------------------------------------------------------------------------------------

FLOAT_N = tuple(range(8, 257, 8))
INT_N = (8, 16, 24, *range(32, 257, 16))
SCALES = " #scale_a[-1,1,2] #scale_b[-1,1,2]"


def _shapes(k: int, ns: tuple[int, ...] = FLOAT_N) -> str:
    return "|".join(f"m64n{n}k{k}" for n in ns)


def _pairs(values: Mapping[str, Value]) -> Verdict:
    """16-bit operands have one type, and bf16 accumulates in f32; signed with unsigned came later."""
    a, b = values["atype"], values["btype"]
    if a in ("f16", "bf16"):
        if a != b:
            return f"atype and btype are the same, got {a!r} and {b!r}"
        return (
            "bf16 accumulates in f32: dtype is 'f32', got 'f16'" if a == "bf16" and values["dtype"] == "f16" else None
        )
    return Requirement((8, 4), "sm_90a") if a in ("s8", "u8") and a != b else None


WGMMA = (
    # K, N, D types, A types, B types, tail of the spelling, operands after scale_d, transposes
    (16, FLOAT_N, "f32|f16", "f16|bf16", "f16|bf16", "", SCALES, True),
    (8, FLOAT_N, "f32", "tf32", "tf32", "", SCALES, False),
    (32, FLOAT_N, "f32|f16", "e4m3|e5m2", "e4m3|e5m2", "", SCALES, False),
    (32, INT_N, "s32", "s8|u8", "s8|u8", "{.satfinite}", "", False),
    (256, INT_N, "s32", "b1", "b1", ".and.popc", "", False),
)


def _wgmma(registers: bool, sparse: bool) -> tuple[Row, ...]:
    """wgmma.mma_async with A in shared memory or in registers, dense or 2:4 sparse."""
    path = "wgmma.mma_async" + (".sp" if sparse else "") + (".rs" if registers else "")
    where = "registers" if registers else "shared memory"
    rows = []
    for k, ns, d, a, b, tail, scales, transposes in WGMMA:
        if sparse and a == "b1":
            continue
        shapes = _shapes(2 * k if sparse else k, ns)
        operands = f"+d:b32*accumulator {'a:b32*4' if registers else 'a:b64'} b:b64"
        operands += (" metadata:b32 #selector[0,wgmma_selector]" if sparse else "") + " scale_d:pred" + scales
        if transposes:
            operands += " #trans_b[0,1]" if registers else " #trans_a[0,1] #trans_b[0,1]"
        rows.append(
            Row(
                path,
                f"wgmma.mma_async{'.sp' if sparse else ''}.sync.aligned{{.shape!:{shapes}}}{{.dtype!:{d}}}"
                f"{{.atype!:{a}}}{{.btype!:{b}}}{tail}",
                operands, "8.2" if sparse else "8.0", "sm_90a", rules=(_pairs,),
                meaning="wgmma.sp" if sparse else "wgmma",
                doc=f"A in {where}, B in shared memory" + (", A 2:4 sparse." if sparse else "."),
            )
        )  # fmt: skip
    return tuple(rows)


# -- mma.sync ----------------------------------------------------------------------------------------------------------

MMA_OPERANDS = "=d:d_word*mma_d a:b_word*mma_a b:b_word*mma_b c:c_word*mma_c"
SPARSE_OPERANDS = "=d:d_word*mma_d a:b32*mma_sp_a b:b32*mma_b c:c_word*mma_c metadata:b32 #selector[0,mma_selector]"


def _mma(shapes: str, d: str, a: str, b: str, c: str, tail: str = "", head: str = "", **more: Any) -> Row:
    types = f"{{.dtype!:{d}}}{{.atype!:{a}}}{{.btype!:{b}}}{{.ctype!:{c}}}"
    return Row(
        "mma.sync", f"mma.sync.aligned{{.shape!:{shapes}}}.row.col{head}{types}{tail}", MMA_OPERANDS, **more,
    )  # fmt: skip


def _mma_sparse(shapes: str, d: str, a: str, b: str, c: str, head: str = "", **more: Any) -> Row:
    types = f"{{.dtype!:{d}}}{{.atype!:{a}}}{{.btype!:{b}}}{{.ctype!:{c}}}"
    return Row(
        "mma.sp",
        f"mma{{.variant:sp|sp::ordered_metadata@8.5=sp}}.sync.aligned{{.shape!:{shapes}}}.row.col{head}{types}",
        SPARSE_OPERANDS, **more,
    )  # fmt: skip


def _paired(values: Mapping[str, Value]) -> Verdict:
    """C has the type of D."""
    return (
        None if values["ctype"] == values["dtype"] else f"ctype is dtype, got {values['ctype']} and {values['dtype']}"
    )


def _fp8_f16(values: Mapping[str, Value]) -> Verdict:
    """fp8 with k16 or f16 accumulators came later."""
    late = values["dtype"] == "f16" or str(values["shape"]).endswith("k16")
    return _paired(values) or (Requirement((8, 7), "sm_89") if late else None)


AMPERE: dict[str, Any] = {"since": "7.0", "target": "sm_80"}
FP8, S8, S4 = "e4m3|e5m2", "s8|u8", "s4|u4"

ROWS = (
    Row("wgmma.fence", "wgmma.fence.sync.aligned", "", "8.0", "sm_90a"),
    Row("wgmma.commit_group", "wgmma.commit_group.sync.aligned", "", "8.0", "sm_90a"),
    Row("wgmma.wait_group", "wgmma.wait_group.sync.aligned", "#pending[0,255]", "8.0", "sm_90a"),
    *_wgmma(registers=False, sparse=False),
    *_wgmma(registers=True, sparse=False),
    *_wgmma(registers=False, sparse=True),
    *_wgmma(registers=True, sparse=True),
    _mma("m16n8k8|m16n8k16", "f32|f16", "f16|bf16", "f16|bf16", "f32|f16", rules=(_paired, _pairs), **AMPERE),
    _mma("m16n8k4|m16n8k8", "f32", "tf32", "tf32", "f32", **AMPERE),
    _mma("m16n8k16|m16n8k32", "f32|f16", FP8, FP8, "f32|f16", since="8.4", target="sm_89", rules=(_fp8_f16,)),
    _mma("m8n8k16|m16n8k16|m16n8k32", "s32", S8, S8, "s32", head="{.satfinite}", **AMPERE),
    _mma("m8n8k32|m16n8k32|m16n8k64", "s32", S4, S4, "s32", head="{.satfinite}", **AMPERE),
    _mma("m8n8k128|m16n8k128|m16n8k256", "s32", "b1", "b1", "s32", tail="{.op!:xor|and@7.1}.popc", **AMPERE),
    _mma("m8n8k4", "f64", "f64", "f64", "f64", **AMPERE),
    _mma("m16n8k4|m16n8k8|m16n8k16", "f64", "f64", "f64", "f64", since="7.8", target="sm_90"),
    _mma_sparse(
        "m16n8k16|m16n8k32", "f32|f16", "f16|bf16", "f16|bf16", "f32|f16", since="7.1", target="sm_80",
        rules=(_paired, _pairs),
    ),
    _mma_sparse("m16n8k8|m16n8k16", "f32", "tf32", "tf32", "f32", since="7.1", target="sm_80"),
    _mma_sparse("m16n8k64", "f32", FP8, FP8, "f32", since="8.4", target="sm_89"),
    _mma_sparse("m16n8k32|m16n8k64", "s32", S8, S8, "s32", head="{.satfinite}", since="7.1", target="sm_80"),
    _mma_sparse("m16n8k64|m16n8k128", "s32", S4, S4, "s32", head="{.satfinite}", since="7.1", target="sm_80"),
    Row(
        "ldmatrix",
        "ldmatrix.sync.aligned{.shape:m8n8=m8n8}{.num!:x1|x2|x4}{.trans}{.space:shared|shared::cta=shared::cta}.b16",
        "=d:b32*$num [addr]", "6.5", "sm_75",
    ),
    Row(
        "ldmatrix.m16n16",
        "ldmatrix.sync.aligned.m16n16{.num!:x1|x2}{.trans!}{.space:shared|shared::cta=shared::cta}{.type!:b8"
        "|b8x16.b6x16_p32|b8x16.b4x16_p64}",
        "=d:b32*ldmatrix_m16n16 [addr]", "8.6", "sm_100a", meaning="ldmatrix.b8",
    ),
    Row(
        "ldmatrix.m8n16",
        "ldmatrix.sync.aligned.m8n16{.num!:x1|x2|x4}{.space:shared|shared::cta=shared::cta}{.type!:b8x16.b6x16_p32"
        "|b8x16.b4x16_p64}",
        "=d:b32*$num [addr]", "8.6", "sm_100a", meaning="ldmatrix.b8",
    ),
    Row(
        "stmatrix", "stmatrix.sync.aligned.m8n8{.num!:x1|x2|x4}{.trans}{.space:shared|shared::cta=shared::cta}.b16",
        "[addr] value:b32*$num", "7.8", "sm_90",
    ),
    Row(
        "stmatrix.m16n8",
        "stmatrix.sync.aligned.m16n8{.num!:x1|x2|x4}{.trans!}{.space:shared|shared::cta=shared::cta}.b8",
        "[addr] value:b32*$num", "8.6", "sm_100a", meaning="stmatrix.b8",
    ),
    Row("movmatrix", "movmatrix.sync.aligned.m8n8.trans.b16", "=d:b32 a:b32", "7.8", "sm_75"),
)  # fmt: skip
