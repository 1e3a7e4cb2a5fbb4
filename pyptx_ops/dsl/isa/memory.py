"""Loads, stores, caches, address spaces."""

from __future__ import annotations

from .row import Row
from .rules import forbid, narrow_vectors, only, system_b128, wide_vectors

__all__ = ["ROWS"]

HINT = "{.L2::cache_hint?policy@7.4@sm_80}"
L1, L2, SIZE = "{.l1:@l1}", "{.l2evict:@l2evict}", "{.l2:@l2size}"
LOADED, STORED = "=d~$type*$vec [addr] ?policy:b64", "[addr] value~$type*$vec ?policy:b64"
VEC = "{.vec:@vec|v8@8.8@sm_100}"
SHARED = "global|shared|@smem"

ONE_LEVEL = (
    forbid("cache", "l1", "l2evict"),
    only("policy", space=("global", None)),
    only("l2", space=("global", None)),
)
IN_GLOBAL = (only("l1", space=("global", None)), only("l2evict", space=("global", None)))
NON_COHERENT = only("nc", space=("global",), weak=(False, None), cache=("ca", "cg", "cs", None))

ROWS = (
    Row(
        "ld",
        f"ld{{.weak}}{{.space:{SHARED}|local|const|param}}{{.cache:ca|cg|cs|lu|cv}}{{.nc}}{L1}{L2}{HINT}{SIZE}{VEC}"
        f"{{.type!:@data}}",
        LOADED,
        rules=(*ONE_LEVEL, *IN_GLOBAL, wide_vectors, NON_COHERENT),
    ),
    Row(
        "ld",
        f"ld{{.sem!:relaxed|acquire}}{{.scope!:@scope}}{{.space:{SHARED}}}{L1}{L2}{HINT}{SIZE}{VEC}{{.type!:@data}}",
        LOADED, "6.0", "sm_70", rules=(*ONE_LEVEL[1:], *IN_GLOBAL, wide_vectors, system_b128),
    ),
    Row(
        "ld", f"ld{{.volatile!}}{{.space:{SHARED}}}{SIZE}{{.vec:@vec}}{{.type!:@data}}", "=d~$type*$vec [addr]",
        rules=(only("l2", space=("global", None)), wide_vectors),
    ),
    Row(
        "ld", "ld{.mmio!}.relaxed.sys{.space:global}{.type!:@data}", "=d~$type [addr]", "8.2", "sm_70",
        rules=(system_b128,),
    ),
    Row("ldu", "ldu{.space:global}{.vec:@vec}{.type!:@data}", "=d~$type*$vec [addr]", rules=(narrow_vectors,)),
    Row(
        "st", f"st{{.weak}}{{.space:{SHARED}|local}}{{.cache:wb|cg|cs|wt}}{L1}{L2}{HINT}{VEC}{{.type:@data}}", STORED,
        rules=(*ONE_LEVEL[:2], *IN_GLOBAL, wide_vectors),
    ),
    Row(
        "st", f"st{{.sem!:relaxed|release}}{{.scope!:@scope}}{{.space:{SHARED}}}{L1}{L2}{HINT}{VEC}{{.type:@data}}",
        STORED, "6.0", "sm_70", rules=(ONE_LEVEL[1], *IN_GLOBAL, wide_vectors, system_b128),
    ),
    Row(
        "st", f"st{{.volatile!}}{{.space:{SHARED}}}{{.vec:@vec}}{{.type:@data}}", "[addr] value~$type*$vec",
        rules=(wide_vectors,),
    ),
    Row(
        "st", "st{.mmio!}.relaxed.sys{.space:global}{.type:@data}", "[addr] value~$type", "8.2", "sm_70",
        rules=(system_b128,),
    ),
    Row(
        "st", "st{.space!:param}{.vec:@vec}{.type:@data}", "[addr] value~$type*$vec", rules=(narrow_vectors,),
        meaning="st.param", doc="To a parameter of a call.",
    ),
    Row("prefetch", "prefetch{.space:global|local}{.level!:L1|L2}", "[addr]", "2.0"),
    Row("prefetch", "prefetch{.space!:global}{.level!:L2::evict_last|L2::evict_normal}", "[addr]", "7.4", "sm_80"),
    Row("prefetchu", "prefetchu.L1", "[addr]", "2.0"),
    Row("applypriority", "applypriority{.space:global}.L2::evict_normal", "[addr] #bytes[128,128]", "7.4", "sm_80"),
    Row("discard", "discard{.space:global}.L2", "[addr] #bytes[128,128]", "7.4", "sm_80"),
    Row(
        "createpolicy.fractional",
        "createpolicy.fractional{.primary!:L2::evict_last|L2::evict_normal|L2::evict_first|L2::evict_unchanged}"
        "{.secondary:L2::evict_first|L2::evict_unchanged}.b64",
        "=policy:b64 ?fraction:f32", "7.4", "sm_80",
    ),
    Row(
        "createpolicy.range",
        "createpolicy.range{.space:global}{.primary!:L2::evict_last|L2::evict_normal|L2::evict_first"
        "|L2::evict_unchanged}{.secondary:L2::evict_first|L2::evict_unchanged}.b64",
        "=policy:b64 [addr] primary_bytes:u32 total_bytes:u32", "7.4", "sm_80",
    ),
    Row("createpolicy.cvt", "createpolicy.cvt.L2.b64", "=policy:b64 property:b64", "7.4", "sm_80"),
    Row(
        "cvta",
        "cvta{.space!:global|shared|const|local|param@7.7|shared::cta@7.8@sm_90|shared::cluster@7.8@sm_90}.u64",
        "=d:u64 a:u64", "2.0", doc="The generic address of an address in a space.",
    ),
    Row(
        "cvta.to",
        "cvta.to{.space!:global|shared|const|local|param@7.7|shared::cta@7.8@sm_90|shared::cluster@7.8@sm_90}.u64",
        "=d:u64 a:u64", "2.0", doc="The address in a space of a generic address.",
    ),
    Row(
        "isspacep",
        "isspacep{.space!:global|local|shared|const@3.1|param@7.7|shared::cta@7.8@sm_90|shared::cluster@7.8@sm_90}",
        "=p:pred a:u64", "2.0",
    ),
    Row("mapa", "mapa{.space:shared::cluster}{.type!:u32|u64}", "=d:$type a:$type rank:u32", "7.8", "sm_90"),
    Row("getctarank", "getctarank{.space:shared::cluster}{.type!:u32|u64}", "=d:u32 a:$type", "7.8", "sm_90"),
)  # fmt: skip
