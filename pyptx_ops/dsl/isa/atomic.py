"""Atomics, reductions and multimem."""

from __future__ import annotations

from collections.abc import Mapping

from .row import Row, Value
from .rules import Verdict, fits, forbid, only, system_b128, together

__all__ = ["ROWS"]

HINT = "{.L2::cache_hint?policy@7.4@sm_80}"
SPACE = "{.space:global|shared|@smem}"
ORDER = "{.sem:relaxed|acquire|release|acq_rel}{.scope:@scope}"
OPS: dict[str, tuple[str, ...]] = {
    "and": ("b32", "b64"), "or": ("b32", "b64"), "xor": ("b32", "b64"), "exch": ("b32", "b64", "b128"),
    "add": ("u32", "s32", "u64", "f32", "f64"), "inc": ("u32",), "dec": ("u32",),
    "min": ("u32", "s32", "u64", "s64"), "max": ("u32", "s32", "u64", "s64"),
}  # fmt: skip
RED_OPS = "and|or|xor|add|inc|dec|min|max"
TYPES = "b32|b64|u32|s32|u64|s64|f32|f64"
HALVES = "f16@7.0|bf16@7.8@sm_90|f16x2|bf16x2@7.8@sm_90"
POLICY = only("policy", space=("global", None))


def _fits(values: Mapping[str, Value]) -> Verdict:
    """Which operations a type has."""
    return fits(values, OPS[str(values["op"])])


def _vector(values: Mapping[str, Value]) -> Verdict:
    """Vector elements make 128 bits at most."""
    vec, kind = str(values["vec"]), str(values["type"])
    most = 8 if kind in ("f16", "bf16") else 4
    if int(vec[1:]) > most:
        return f"{kind} has vectors of up to {most}, got {vec}"
    return None


def _red_async(values: Mapping[str, Value]) -> Verdict:
    """Which operations red.async has."""
    taken: dict[str, tuple[str, ...]] = {
        "inc": ("u32",), "dec": ("u32",), "min": ("u32", "s32"), "max": ("u32", "s32"), "add": ("u32", "s32", "u64"),
    }  # fmt: skip
    types = taken.get(str(values["op"]), ("b32",))
    return fits(values, types)


def _st_async(values: Mapping[str, Value]) -> Verdict:
    wide = values["vec"] == "v4" and str(values["type"]).endswith("64")
    return f"v4 of {values['type']} is wider than 128 bits" if wide else None


def _both(name: str, order: str, types: str, ops: str) -> tuple[Row, ...]:
    """The forms that atom and red share; only atom returns what was there."""
    order_rules = (together("sem", "scope"), POLICY)
    scalar, vector = "[addr] b:$type ?policy:b64", "[addr] b:$type*$vec ?policy:b64"
    if name == "atom":
        scalar, vector = "=d:$type " + scalar, "=d:$type*$vec " + vector
    in_global = order + "{.space:global}"
    return (
        Row(
            name, f"{name}{order}{SPACE}{{.op!:{ops}}}{HINT}{{.type:{types}}}", scalar, "6.0", "sm_70",
            rules=(*order_rules, _fits, system_b128),
        ),
        Row(
            name, f"{name}{order}{SPACE}{{.op!:add}}{{.noftz!}}{HINT}{{.type:{HALVES}}}", scalar, "6.2", "sm_70",
            rules=order_rules, meaning=name + ".half",
        ),
        Row(
            name, f"{name}{in_global}{{.op!:add}}{HINT}{{.vec!:v2|v4}}{{.type!:f32}}", vector, "8.1", "sm_90",
            rules=order_rules, meaning=name + ".vector",
        ),
        Row(
            name, f"{name}{in_global}{{.op!:add|min|max}}{{.noftz!}}{HINT}{{.vec!:v2|v4|v8}}{{.type!:@half|@half2}}",
            vector, "8.1", "sm_90", rules=(*order_rules, _vector), meaning=name + ".vector",
        ),
    )  # fmt: skip


MULTIMEM = "{.op!:add|min|max|and|or|xor}"
MULTIMEM_OPS: dict[str, tuple[str, ...]] = {
    "f32": ("add",), "f64": ("add",), "u32": ("add", "min", "max"), "s32": ("add", "min", "max"),
    "u64": ("add", "min", "max"), "s64": ("min", "max"), "b32": ("and", "or", "xor"), "b64": ("and", "or", "xor"),
}  # fmt: skip
HALF_OPS = ("add", "min", "max")


def _multimem(values: Mapping[str, Value]) -> Verdict:
    """What multimem does to a type, and how wide."""
    op, kind, vec = str(values["op"]), str(values["type"]), str(values["vec"] or "v1")
    ops = MULTIMEM_OPS.get(kind, HALF_OPS)
    if op not in ops:
        return f"{kind} takes {', '.join(ops)}, got {op}"
    bits = {"f32": 32, "f16x2": 32, "bf16x2": 32, "f16": 16, "bf16": 16}.get(kind)
    if vec == "v1":
        return f"{kind} needs a vector" if bits == 16 else None
    if bits is None:
        return f"{kind} has no vector form"
    return f"{vec} of {kind} is wider than 128 bits" if int(vec[1:]) * bits > 128 else None


def _multimem_width(values: Mapping[str, Value]) -> Verdict:
    return _multimem({**values, "op": MULTIMEM_OPS.get(str(values["type"]), HALF_OPS)[0]})


MULTIMEM_TYPES = "u32|s32|u64|s64|b32|b64|f32|f64|@half2|@half"


def _half2_red(values: Mapping[str, Value]) -> Verdict:
    alone = values["vec"] is None and values["type"] in ("f16x2", "bf16x2") and values["op"] != "add"
    return f"{values['op']} of {values['type']} needs a vector" if alone else None


ACC = only("acc::f32", type=("f16", "bf16", "f16x2", "bf16x2"), op=("add",))

ROWS = (
    *_both("atom", ORDER, TYPES + "|b128@8.3@sm_90", "exch|" + RED_OPS),
    Row(
        "atom.cas", f"atom{ORDER}{SPACE}.cas{{.type!:b16@6.3|b32|b64|b128@8.3@sm_90}}",
        "=d:$type [addr] compare:$type value:$type", "6.0", "sm_70", rules=(together("sem", "scope"), system_b128),
    ),
    *_both("red", "{.sem:relaxed|release}{.scope:@scope}", TYPES, RED_OPS),
    Row(
        "red.async",
        "red.async.relaxed.cluster{.space:shared::cluster=shared::cluster}.mbarrier::complete_tx::bytes{.op!:add"
        "|min|max|inc|dec|and|or|xor}{.type:u32|s32|u64|b32}",
        "[addr] value:$type [bar]", "8.1", "sm_90", rules=(_red_async,),
    ),
    Row(
        "st.async",
        "st.async{.weak}{.space:shared::cluster=shared::cluster}.mbarrier::complete_tx::bytes{.vec:v2|v4}"
        "{.type:b32|u32|s32|f32|b64|u64|s64|f64}",
        "[addr] value:$type*$vec [bar]", "8.1", "sm_90", rules=(_st_async,),
    ),
    Row("st.bulk", "st.bulk{.weak}{.space:shared::cta=shared::cta}", "[addr] bytes:u64 #value[0,0]", "8.6", "sm_100"),
    Row(
        "multimem.ld_reduce",
        f"multimem.ld_reduce{{.weak}}{{.sem:relaxed|acquire}}{{.scope:@scope}}{{.space:global}}{MULTIMEM}"
        f"{{.acc::f32@8.2}}{{.vec:v2|v4|v8}}{{.type!:{MULTIMEM_TYPES}}}",
        "=d:$type*$vec [addr]", "8.1", "sm_90",
        rules=(together("sem", "scope"), forbid("weak", "sem"), _multimem, ACC),
    ),
    Row(
        "multimem.red",
        f"multimem.red{{.sem:relaxed|release}}{{.scope:@scope}}{{.space:global}}{MULTIMEM}{{.vec:v2|v4|v8}}"
        f"{{.type!:{MULTIMEM_TYPES}}}",
        "[addr] value:$type*$vec", "8.1", "sm_90", rules=(together("sem", "scope"), _multimem, _half2_red),
    ),
    Row(
        "multimem.st",
        "multimem.st{.weak}{.sem:relaxed|release}{.scope:@scope}{.space:global}{.vec:v2|v4|v8}{.type!:u32|s32|u64"
        "|s64|b32|b64|f32|f64|@half2|@half}",
        "[addr] value:$type*$vec", "8.1", "sm_90",
        rules=(together("sem", "scope"), forbid("weak", "sem"), _multimem_width),
    ),
)  # fmt: skip
