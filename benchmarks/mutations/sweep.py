"""Which kernels are mutated, what is made of their mutants, and how that is counted."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from .body import Mutant, body_of
from .exclusions import exclusion_of
from .kinds import mutants
from .running import outcome_of

__all__ = ["EXPECTED", "KERNELS", "Result", "families", "family_of", "results_of", "summary"]

KERNELS = (
    "gemm_bf16_xk_yk_128x128x64_s6",
    "gemm_bf16_xmn_ymn_128x192x64_s5",
    "gemm_bf16_xk_ymn_128x256x64_s4",
    "gemm_bf16_xmn_yk_128x32x64_s5_swap_b2",
    "gemm_bf16_xk_yk_128x16x64_s5_swap_split2_b2",
    "gemm_bf16_xmn_yk_128x32x64_s4_swap_split4_b2",
    "gemm_bf16_xk_yk_128x128x64_s4_swap_split2",
    "grouped_gemm_bf16_xk_yk_128x128x64_s6",
    "grouped_gemm_bf16_xmn_yk_128x16x64_s5_swap_b2",
    "grouped_gemm_bf16_xmn_ymn_128x128x64_s6_ragged_k",
    "gemm_swiglu_bf16_xk_ymn_128x128x64_s6",
    "gemm_swiglu_bf16_xk_yk_128x16x64_s5_swap_split4_b2",
    "grouped_gemm_swiglu_bf16_xk_yk_128x128x64_s6",
    "grouped_gemm_swiglu_bf16_xmn_yk_128x16x64_s5_swap_b2",
    "rms_norm_bf16_w8_8x2",
    "rms_norm_bf16_w8_32x4",
    "rms_norm_bf16_w8_256x2",
    "rms_norm_bf16_w8_256x8_cluster4_wide",
    "rms_norm_bf16_w1_32x8",
    "fused_add_rms_norm_bf16_w8_8x2",
    "fused_add_rms_norm_bf16_w8_128x2",
    "fused_add_rms_norm_bf16_w8_512x4_cluster4_wide",
    "fused_add_rms_norm_bf16_w1_32x8",
    "swiglu_bf16_rows_256x2",
    "swiglu_bf16_pairs_256x2",
    "swiglu_bf16_strided_256x8",
    "swiglu_bwd_bf16_rows_256x2",
    "swiglu_bwd_bf16_pairs_256x2",
    "swiglu_bwd_bf16_strided_256x4",
)
"""Every form of every family: each layout of operands, swapped and split over two and four CTAs, and rows of a part of
a warp, of a warp, a CTA and a cluster."""

_DATA = {"race", "copy in flight", "uninitialised shared memory", "missing proxy fence", "wrong value"}
_BARRIER = {*_DATA, "deadlock", "barrier misuse", "exit with work in flight"}
_TILE = {"inconsistent tile", "tensor map", *_DATA}
EXPECTED = {
    "left out": {
        *_BARRIER, "missing fence.mbarrier_init", "missing wgmma.fence", "accumulator in flight", "CTA not started",
        "exited CTA", "register budget",
    },
    "moved": {
        *_BARRIER, "missing fence.mbarrier_init", "missing wgmma.fence", "accumulator in flight", "CTA not started",
        "exited CTA",
    },
    "one path": {*_BARRIER, "CTA not started", "exited CTA"},
    "parity": _BARRIER,
    "bytes": {"deadlock", "barrier misuse"},
    "count": {"deadlock", "race", "barrier misuse", "copy in flight"},
    "pending": {"accumulator in flight", "copy in flight", "race"},
    "swizzle": _TILE,
    "descriptor": {*_TILE, "out of bounds", "misaligned"},
    "scope": {"race", "missing fence.mbarrier_init", "uninitialised shared memory", "exited CTA"},
    "every lane": {"barrier misuse", "copy in flight"},
    "exchange": {*_BARRIER, "out of bounds", "limit"},
    "bounds": {"out of bounds", "race", "wrong value", "uninitialised global memory"},
}  # fmt: skip
"""Kind of mutation -> the kinds of reports that say what is wrong with it."""


class Explanation(NamedTuple):
    """Of survivors that are no defect of the simulator."""

    holds: Callable[[Mutant], bool]
    why: str


EXPLANATIONS = (
    Explanation(
        lambda m: m.kind == "left out" and "setmaxnreg.inc" in m.statement,
        "ptxas then keeps the consumers within the registers of the launch: it spills a little where they are not "
        "enough, and the kernel computes the same (assembled in tests/sim/test_mutations.py)",
    ),
)


@dataclass(frozen=True)
class Result:
    """Of a mutant. killed: by what kind of report, "wrong value", or "".  excluded: the reason's name, or ""."""

    kernel: str
    kind: str
    what: str
    python: str
    killed: str
    excluded: str
    explanation: str

    @property
    def family(self) -> str:
        return family_of(self.kernel)


def family_of(kernel: str) -> str:
    """Such as "gemm"."""
    return kernel.partition("_bf16")[0].partition("_f16")[0]


def result_of(mutant: Mutant) -> Result:
    outcome, excluded = outcome_of(mutant), exclusion_of(mutant)
    why = next((e.why for e in EXPLANATIONS if e.holds(mutant)), "") if not outcome.killed else ""
    return Result(
        mutant.kernel, mutant.kind, mutant.what, mutant.python, outcome.killed, excluded.name if excluded else "", why
    )


def results_of(kernel: str) -> list[Result]:
    """Of every mutant of a kernel."""
    gc.collect()
    gc.freeze()  # a launch looks through all objects for tensors
    return [result_of(mutant) for mutant in mutants(body_of(kernel))]


def families(results: Sequence[Result]) -> list[dict[str, Any]]:
    """A row for each family and kind of mutation; excluded mutants are counted apart."""
    cells: dict[tuple[str, str], list[Result]] = {}
    for result in results:
        cells.setdefault((result.family, result.kind), []).append(result)
    return [{"case": f"{family}: {kind}", **counted(those)} for (family, kind), those in cells.items()]


def counted(results: Sequence[Result]) -> dict[str, Any]:
    those = [result for result in results if not result.excluded]
    value = sum(result.killed == "wrong value" for result in those)
    survived = sum(not result.killed for result in those)
    return {
        "mutants": len(those), "by report": len(those) - value - survived, "by value": value, "survived": survived,
        "excluded": len(results) - len(those),
    }  # fmt: skip


def summary(results: Sequence[Result]) -> dict[str, Any]:
    """Totals of all and of each family, survivors with their lines, and what was excluded why."""
    names = dict.fromkeys(result.family for result in results)
    kinds = dict.fromkeys(result.kind for result in results)
    return {
        "all": rated(results),
        "families": {name: rated([r for r in results if r.family == name]) for name in names},
        "reports": {kind: dict(Counter(r.killed for r in results if r.kind == kind and r.killed)) for kind in kinds},
        "survivors": [vars(result) for result in results if not result.killed and not result.excluded],
        "excluded": dict(Counter(result.excluded for result in results if result.excluded)),
        "problems": list(problems(results)),
    }


def rated(results: Sequence[Result]) -> dict[str, Any]:
    row = counted(results)
    return {**row, "killed": round(1 - row["survived"] / row["mutants"], 4) if row["mutants"] else None}


TARGET = 0.95


def problems(results: Sequence[Result]) -> Iterator[str]:
    """What ought not to be: survivors without an explanation, excluded mutants that are found, other reports."""
    for result in results:
        told = f"{result.kernel}: {result.kind}: {result.what}"
        if result.excluded and result.killed:
            yield f"{told}: excluded ({result.excluded}), but found: {result.killed}"
        elif not result.excluded and not result.killed and not result.explanation:
            yield f"{told}: survived"
        elif result.killed and result.killed not in EXPECTED[result.kind]:
            yield f"{told}: found as {result.killed}"
    for name in dict.fromkeys(result.family for result in results):
        killed = rated([result for result in results if result.family == name])["killed"]
        if killed is not None and killed < TARGET:
            yield f"{name}: {killed:.1%} of the mutants are found"
