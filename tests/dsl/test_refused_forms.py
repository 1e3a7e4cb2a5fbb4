"""Forms that ptxas refuses are refused while tracing."""

from __future__ import annotations

import pytest

from pyptx_ops.dsl import ptx

from .refused import Call, check_refused

MMA = {"shape": "m64n16k16", "dtype": "f32", "atype": "bf16", "btype": "bf16"}
REFUSED: dict[str, tuple[Call, str] | tuple[Call, str, str]] = {
    # what: (call, what the error says, target if not sm_90a)
    "accumulator length": (
        lambda k, r: ptx.wgmma.mma_async(k.regs("f32", 4), r["b64"], r["b64"], 1, 1, 1, 0, 0, **MMA),
        "vector of 8",
    ),
    "wgmma N": (
        lambda k, r: ptx.wgmma.mma_async([], 1, 1, 1, 1, 1, 0, 0, **{**MMA, "shape": "m64n12k16"}),
        "shape takes",
    ),
    "bf16 accumulator": (
        lambda k, r: ptx.wgmma.mma_async([], 1, 1, 1, 1, 1, 0, 0, **{**MMA, "dtype": "f16"}),
        "bf16 accumulates in f32",
    ),
    "transposes of registers": (lambda k, r: ptx.wgmma.mma_async.rs([], [], 1, 1, 1, 1, 0, 0, **MMA), "got 8"),
    "imm-scale": (
        lambda k, r: ptx.wgmma.mma_async(k.regs("f32", 8), 1, 1, 1, 2, -1, 1, 1, **MMA),
        "scale_a takes .* -1 to 1 in steps of 2",
    ),
    "tf32 transposes": (
        lambda k, r: ptx.wgmma.mma_async(
            [], 1, 1, 1, 1, 1, 0, 0, shape="m64n16k8", dtype="f32", atype="tf32", btype="tf32"
        ),
        "takes",
    ),
    "integer N": (
        lambda k, r: ptx.wgmma.mma_async([], 1, 1, 1, shape="m64n40k32", dtype="s32", atype="s8", btype="s8"),
        "shape takes",
    ),
    "integer imm-scale": (
        lambda k, r: ptx.wgmma.mma_async([], 1, 1, 1, 1, 1, shape="m64n16k32", dtype="s32", atype="s8", btype="s8"),
        "takes",
    ),
    "wgmma on sm_90": (lambda k, r: ptx.wgmma.fence(), "needs sm_90a, and this kernel's target is sm_90", "sm_90"),
    "wgmma on sm_100a": (
        lambda k, r: ptx.wgmma.fence(),
        "needs sm_90a, and this kernel's target is sm_100a",
        "sm_100a",
    ),
    "map offset": (lambda k, r: ptx.cp.async_.bulk.tensor.prefetch(r["u64"].at(8), [0], dim="1d"), "takes no offset"),
    "im2col of two dimensions": (
        lambda k, r: ptx.cp.async_.bulk.tensor.load_im2col(
            r["u32"], r["u64"], [0, 0], r["u32"], [], dim="2d", mode="im2col"
        ),
        "dim takes",
    ),
    "gather4 on Hopper": (
        lambda k, r: ptx.cp.async_.bulk.tensor.load_gather4(r["u32"], r["u64"], [0] * 5, r["u32"]),
        "needs sm_100a",
    ),
    "cta_group on Hopper": (
        lambda k, r: ptx.cp.async_.bulk.tensor.load(
            r["u32"], r["u64"], [0], r["u32"], dim="1d", cta_group="cta_group::2"
        ),
        "needs sm_100a",
    ),
    "bulk size": (
        lambda k, r: ptx.cp.async_.bulk.load(r["u32"], r["u64"], 1000, r["u32"]),
        "size is from 16 .* in steps of 16, got 1000",
    ),
    "wait group": (lambda k, r: ptx.cp.async_.bulk.wait_group(r["u32"]), "pending takes an integer literal"),
    "reduce max f32": (
        lambda k, r: ptx.cp.reduce.async_.bulk(r["u64"], r["u32"], 16, op="max", type="f32"),
        "max takes the types",
    ),
    "remote reduce f32": (
        lambda k, r: ptx.cp.reduce.async_.bulk.shared(r["u32"], r["u32"], 16, r["u32"], op="add", type="f32"),
        "type takes",
    ),
    "tensormap on sm_90": (
        lambda k, r: ptx.tensormap.replace(r["u64"], r["b64"], field="global_address", space="global"),
        "needs an architecture-specific",
        "sm_90",
    ),
    "elemtype register": (
        lambda k, r: ptx.tensormap.replace(r["u32"], r["u32"], field="elemtype", space="shared::cta"),
        "integer literal",
    ),
    "swizzle atomicity": (
        lambda k, r: ptx.tensormap.replace(r["u32"], 1, field="swizzle_atomicity", space="shared::cta"),
        "needs sm_100a",
    ),
    "init elsewhere": (lambda k, r: ptx.mbarrier.init(r["u32"], 1, space="shared::cluster"), "space takes"),
    "wait elsewhere": (lambda k, r: ptx.mbarrier.try_wait.parity(r["u32"], 0, space="shared::cluster"), "space takes"),
    "arrive count": (lambda k, r: ptx.mbarrier.arrive(r["u32"], count=0), "count is from 1 to 1048575, got 0"),
    "parity": (lambda k, r: ptx.mbarrier.try_wait.parity(r["u32"], 2), "parity is from 0 to 1, got 2"),
    "sem without scope": (lambda k, r: ptx.mbarrier.arrive(r["u32"], sem="release"), "sem and scope go together"),
    "barrier number": (lambda k, r: ptx.bar.sync(16, threads=128), "barrier is from 0 to 15, got 16"),
    "barrier threads": (
        lambda k, r: ptx.bar.sync(1, threads=100),
        "threads is from 32 to 1024 in steps of 32, got 100",
    ),
    **{
        f"setmaxnreg {n}": (lambda k, r, n=n: ptx.setmaxnreg(n, action="inc"), "24 to 256 in steps of 8")
        for n in (16, 36, 264)
    },
    "setmaxnreg on sm_90": (
        lambda k, r: ptx.setmaxnreg(232, action="inc"),
        "needs an architecture-specific target",
        "sm_90",
    ),
    "f32x2 on Hopper": (lambda k, r: ptx.fma(r["f32x2"], r["f32x2"], r["f32x2"], rnd="rn"), "needs sm_100 or later"),
    "max of f32x2": (lambda k, r: ptx.max(r["f32x2"], r["f32x2"]), "max: ", "sm_100a"),
    "v8 on Hopper": (lambda k, r: ptx.ld(r["u64"], space="global", vec="v8", type="f32"), "needs sm_100 or later"),
    "v8 of shared": (
        lambda k, r: ptx.ld(r["u32"], space="shared", vec="v8", type="f32"),
        "exceeds the vector width",
        "sm_100a",
    ),
    "m16n16 trans": (
        lambda k, r: ptx.ldmatrix.m16n16(r["u32"], num="x1", type="b8"),
        "trans=True is compulsory",
        "sm_100a",
    ),
    "m16n16 x4": (
        lambda k, r: ptx.ldmatrix.m16n16(r["u32"], num="x4", trans=True, type="b8"),
        "num takes 'x1' or 'x2'",
        "sm_100a",
    ),
    "m16n8 trans": (
        lambda k, r: ptx.stmatrix.m16n8(r["u32"], [r["b32"]], num="x1"),
        "trans=True is compulsory",
        "sm_100a",
    ),
    "redux f32": (lambda k, r: ptx.redux(r["f32"], -1, op="max"), "needs sm_100a"),
    "red min v2": (
        lambda k, r: ptx.red(r["u64"], [r["f32"]] * 2, space="global", op="min", vec="v2", type="f32"),
        "red: ",
    ),
    "red v2 shared": (
        lambda k, r: ptx.red(r["u32"], [r["f32"]] * 2, space="shared", op="add", vec="v2", type="f32"),
        "red: ",
    ),
    "ex2 bf16x2": (lambda k, r: ptx.ex2.approx(r["b32"], type="bf16x2"), "bf16x2 needs ftz=True"),
    "fp8 of bf16x2": (
        lambda k, r: ptx.cvt(r["b32"], type="e4m3x2", src="bf16x2", rnd="rn", satfinite=True),
        "cvt: ",
        "sm_100a",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_with_the_callers_line(case: str) -> None:
    check_refused(*REFUSED[case])
