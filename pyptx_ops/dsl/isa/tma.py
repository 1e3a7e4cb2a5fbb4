"""Asynchronous copies (per thread, bulk, tensor), tensor maps, and cluster launch control."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .row import COUNTS, Requirement, Row, Value
from .rules import Verdict, fits, only

__all__ = ["ROWS"]

HINT = "{.L2::cache_hint?policy}"
TX = ".mbarrier::complete_tx::bytes"
HOPPER: dict[str, Any] = {"since": "8.0", "target": "sm_90"}
MAPS: dict[str, Any] = {"since": "8.3", "target": "a"}
SIZE = "size:u32[16,1048560,16]"


def im2col_offsets(values: Mapping[str, Value]) -> int:
    """One offset per spatial dimension; two for im2col::w."""
    return 2 if "w" in str(values["mode"]).split("::") else int(str(values["dim"])[0]) - 2


MAP_FIELDS = {"elemtype": 12, "interleave_layout": 2, "swizzle_mode": 3, "swizzle_atomicity": 3, "fill_mode": 1}

COUNTS["im2col_offsets"] = im2col_offsets
COUNTS["map_field"] = lambda values: MAP_FIELDS[str(values["field"])]


def _im2col(values: Mapping[str, Value]) -> Verdict:
    return Requirement((8, 6), "sm_100a") if "::w" in str(values["mode"]) else None


def _cp_async(values: Mapping[str, Value]) -> Verdict:
    return "src_size and ignore exclude each other" if values.get("src_size") and values.get("ignore") else None


def _reduces(values: Mapping[str, Value]) -> Verdict:
    """Which types a bulk reduction to global memory takes."""
    op, half = values["op"], values["type"] in ("f16", "bf16")
    if bool(values.get("noftz")) != (half and op == "add"):
        return "noftz goes with add of f16 and bf16, and there it is compulsory"
    types = {
        "add": ("u32", "s32", "u64", "f32", "f64", "f16", "bf16"), "inc": ("u32",), "dec": ("u32",),
        "min": ("u32", "s32", "u64", "s64", "f16", "bf16"), "max": ("u32", "s32", "u64", "s64", "f16", "bf16"),
    }.get(str(op), ("b32", "b64"))  # fmt: skip
    return fits(values, types)


def _reduces_shared(values: Mapping[str, Value]) -> Verdict:
    """Which types a bulk reduction to another CTA's shared memory takes."""
    types = {
        "add": ("u32", "s32", "u64"), "inc": ("u32",), "dec": ("u32",), "min": ("u32", "s32"), "max": ("u32", "s32"),
    }.get(str(values["op"]), ("b32",))  # fmt: skip
    return fits(values, types)


DIM, DIM3 = "{.dim!:@dim}", "{.dim!:3d|4d|5d}"
LOAD_FROM = "{.space:shared::cluster|shared::cta@8.6=shared::cluster}.global"
LOAD_TAIL = TX + "{.multicast::cluster?mask}{.cta_group:cta_group::1@8.6@sm_100a|cta_group::2@8.6@sm_100a}" + HINT
TO_GLOBAL = ".global.shared::cta"
OPS = "{.op!:add|min|max|inc|dec|and|or|xor}"
IM2COL = "{.mode!:im2col|im2col::w|im2col::w::128}"

CLUSTER_ONLY = only("mask", space=("shared::cluster",))

ROWS = (
    Row(
        "cp.async", "cp.async{.cache!:ca}{.space:shared|shared::cta=shared}.global" + HINT + "{.l2:@l2size}",
        "[dst] [src] #size[4,16,4] ?src_size:u32 ?ignore:pred ?policy:b64", "7.0", "sm_80", rules=(_cp_async,),
    ),
    Row(
        "cp.async", "cp.async{.cache!:cg}{.space:shared|shared::cta=shared}.global" + HINT + "{.l2:@l2size}",
        "[dst] [src] #size[16,16] ?src_size:u32 ?ignore:pred ?policy:b64", "7.0", "sm_80", rules=(_cp_async,),
    ),
    Row("cp.async.commit_group", "cp.async.commit_group", "", "7.0", "sm_80"),
    Row("cp.async.wait_group", "cp.async.wait_group", "#pending[0,255]", "7.0", "sm_80"),
    Row("cp.async.wait_all", "cp.async.wait_all", "", "7.0", "sm_80"),
    Row(
        "cp.async.mbarrier.arrive", "cp.async.mbarrier.arrive{.noinc}{.space:shared|shared::cta=shared::cta}.b64",
        "[bar]", "7.0", "sm_80",
    ),
    Row(
        "cp.async.bulk.load",
        f"cp.async.bulk{{.space:shared::cluster|shared::cta@8.6=shared::cluster}}.global{TX}"
        f"{{.multicast::cluster?mask}}{HINT}",
        f"[dst] [src] {SIZE} [bar] ?mask:u16 ?policy:b64", rules=(CLUSTER_ONLY,), meaning="bulk.load", **HOPPER,
    ),
    Row(
        "cp.async.bulk.shared", f"cp.async.bulk.shared::cluster.shared::cta{TX}", f"[dst] [src] {SIZE} [bar]",
        meaning="bulk.shared", doc="To the shared memory of another CTA of the cluster.", **HOPPER,
    ),
    Row(
        "cp.async.bulk.store", f"cp.async.bulk.global.shared::cta.bulk_group{HINT}{{.cp_mask?mask@8.6@sm_100}}",
        f"[dst] [src] {SIZE} ?policy:b64 ?mask:u16", meaning="bulk.store", **HOPPER,
    ),
    Row(
        "cp.async.bulk.prefetch", f"cp.async.bulk.prefetch.L2.global{HINT}", f"[src] {SIZE} ?policy:b64",
        meaning="bulk.prefetch", **HOPPER,
    ),
    Row("cp.async.bulk.commit_group", "cp.async.bulk.commit_group", meaning="bulk.commit_group", **HOPPER),
    Row(
        "cp.async.bulk.wait_group", "cp.async.bulk.wait_group{.read}", "#pending[0,255]", meaning="bulk.wait_group",
        **HOPPER,
    ),
    Row(
        "cp.reduce.async.bulk",
        f"cp.reduce.async.bulk.global.shared::cta.bulk_group{HINT}{OPS}{{.noftz}}{{.type!:u32|s32|u64|s64|f32|f64"
        f"|f16|bf16|b32|b64}}",
        f"[dst] [src] {SIZE} ?policy:b64", rules=(_reduces,), meaning="bulk.reduce", **HOPPER,
    ),
    Row(
        "cp.reduce.async.bulk.shared",
        f"cp.reduce.async.bulk.shared::cluster.shared::cta{TX}{OPS}{{.type!:u32|s32|u64|b32}}",
        f"[dst] [src] {SIZE} [bar]", rules=(_reduces_shared,), meaning="bulk.reduce.shared", **HOPPER,
    ),
    Row(
        "cp.async.bulk.tensor.load", "cp.async.bulk.tensor" + DIM + LOAD_FROM + "{.mode:tile=tile}" + LOAD_TAIL,
        "[dst] [map,coordinates*$dim] [bar] ?mask:u16 ?policy:b64", rules=(CLUSTER_ONLY,), meaning="tma.load",
        **HOPPER,
    ),
    Row(
        "cp.async.bulk.tensor.load_im2col", "cp.async.bulk.tensor" + DIM3 + LOAD_FROM + IM2COL + LOAD_TAIL,
        "[dst] [map,coordinates*$dim] [bar] offsets:u16*im2col_offsets ?mask:u16 ?policy:b64",
        rules=(CLUSTER_ONLY, _im2col), meaning="tma.load_im2col", **HOPPER,
    ),
    Row(
        "cp.async.bulk.tensor.load_gather4",
        "cp.async.bulk.tensor.2d{.space:shared::cluster@8.6@sm_100a|shared::cta=shared::cluster}.global.tile::gather4"
        + LOAD_TAIL,
        "[dst] [map,coordinates*5] [bar] ?mask:u16 ?policy:b64", "8.6", "sm_100", rules=(CLUSTER_ONLY,),
        meaning="tma.load_gather4",
    ),
    Row(
        "cp.async.bulk.tensor.store",
        "cp.async.bulk.tensor" + DIM + TO_GLOBAL + "{.mode:tile=tile}.bulk_group" + HINT,
        "[map,coordinates*$dim] [src] ?policy:b64", meaning="tma.store", **HOPPER,
    ),
    Row(
        "cp.async.bulk.tensor.store",
        "cp.async.bulk.tensor" + DIM3 + TO_GLOBAL + "{.mode!:im2col_no_offs}.bulk_group" + HINT,
        "[map,coordinates*$dim] [src] ?policy:b64", meaning="tma.store_im2col", **HOPPER,
    ),
    Row(
        "cp.async.bulk.tensor.store_scatter4",
        "cp.async.bulk.tensor.2d.global.shared::cta.tile::scatter4.bulk_group" + HINT,
        "[map,coordinates*5] [src] ?policy:b64", "8.6", "sm_100a", meaning="tma.store_scatter4",
    ),
    Row(
        "cp.async.bulk.tensor.prefetch",
        "cp.async.bulk.prefetch.tensor{.dim!:@dim}.L2.global{.mode:tile=tile}" + HINT,
        "[map,coordinates*$dim] ?policy:b64", meaning="tma.prefetch", **HOPPER,
    ),
    Row(
        "cp.async.bulk.tensor.prefetch_im2col", f"cp.async.bulk.prefetch.tensor{DIM3}.L2.global{IM2COL}{HINT}",
        "[map,coordinates*$dim] offsets:u16*im2col_offsets ?policy:b64", rules=(_im2col,),
        meaning="tma.prefetch_im2col", **HOPPER,
    ),
    Row(
        "cp.async.bulk.tensor.prefetch_gather4", "cp.async.bulk.prefetch.tensor.2d.L2.global.tile::gather4" + HINT,
        "[map,coordinates*5] ?policy:b64", "8.6", "sm_100", meaning="tma.prefetch_gather4",
    ),
    Row(
        "cp.reduce.async.bulk.tensor",
        f"cp.reduce.async.bulk.tensor{DIM}.global.shared::cta{OPS}{{.mode:tile=tile}}.bulk_group{HINT}",
        "[map,coordinates*$dim] [src] ?policy:b64", meaning="tma.reduce", **HOPPER,
    ),
    Row(
        "cp.reduce.async.bulk.tensor",
        f"cp.reduce.async.bulk.tensor{DIM3}.global.shared::cta{OPS}{{.mode!:im2col_no_offs}}.bulk_group{HINT}",
        "[map,coordinates*$dim] [src] ?policy:b64", meaning="tma.reduce_im2col", **HOPPER,
    ),
    Row("prefetch.tensormap", "prefetch{.space:const|param}.tensormap", "[map]", **HOPPER),
    Row(
        "tensormap.replace", "tensormap.replace.tile{.field!:global_address}{.space!:global|shared::cta}.b1024.b64",
        "[map] value:b64", **MAPS,
    ),
    Row(
        "tensormap.replace", "tensormap.replace.tile{.field!:global_stride}{.space!:global|shared::cta}.b1024.b64",
        "[map] #ordinal[0,3] value:b64", **MAPS,
    ),
    Row(
        "tensormap.replace", "tensormap.replace.tile{.field!:rank}{.space!:global|shared::cta}.b1024.b32",
        "[map] value:b32", **MAPS,
    ),
    Row(
        "tensormap.replace",
        "tensormap.replace.tile{.field!:box_dim|global_dim|element_stride}{.space!:global|shared::cta}.b1024.b32",
        "[map] #ordinal[0,4] value:b32", **MAPS,
    ),
    Row(
        "tensormap.replace",
        "tensormap.replace.tile{.field!:elemtype|interleave_layout|swizzle_mode|swizzle_atomicity@8.6@sm_100a"
        "|fill_mode}{.space!:global|shared::cta}.b1024.b32",
        "[map] #value[0,map_field]", **MAPS,
    ),
    Row(
        "tensormap.cp_fenceproxy",
        "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release{.scope!:@scope}.sync.aligned",
        "[dst] [src] #bytes[128,128]", "8.3", "sm_90",
    ),
    Row(
        "clusterlaunchcontrol.try_cancel",
        f"clusterlaunchcontrol.try_cancel.async.shared::cta{TX}{{.multicast::cluster::all@8.6@sm_100a}}.b128",
        "[response] [bar]", "8.6", "sm_100",
    ),
    Row(
        "clusterlaunchcontrol.is_canceled", "clusterlaunchcontrol.query_cancel.is_canceled.pred.b128",
        "=p:pred response:b128", "8.6", "sm_100",
    ),
    Row(
        "clusterlaunchcontrol.get_first_ctaid", "clusterlaunchcontrol.query_cancel.get_first_ctaid.v4.b32.b128",
        "=d:b32*4 response:b128", "8.6", "sm_100",
    ),
    Row(
        "clusterlaunchcontrol.get_first_ctaid.component",
        "clusterlaunchcontrol.query_cancel{.component!:get_first_ctaid::x|get_first_ctaid::y"
        "|get_first_ctaid::z}.b32.b128",
        "=d:b32 response:b128", "8.6", "sm_100", meaning="clusterlaunchcontrol.get_first_ctaid",
    ),
)  # fmt: skip
