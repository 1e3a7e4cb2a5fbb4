"""Up projections with SwiGLU in one kernel, dense and grouped, beside the product and then silu(gate) * up.

python -m benchmarks.bench_gemm_swiglu [--quick] [--json]
pytest benchmarks/bench_gemm_swiglu.py --benchmark-enable

The peers' products are cuBLAS and torch's grouped one, their activation is ours or what torch.compile makes of both;
"apart" is the same with our own product.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import pyptx_ops
from benchmarks import harness
from benchmarks.cases import GATED, GATED_EXPERTS, GemmCase, GroupedCase
from benchmarks.harness import Workload
from benchmarks.products import offs_of, operand
from benchmarks.timing import compiled
from pyptx_ops.trials.bounds import gemm_swiglu_excess, grouped_gemm_swiglu_excess

SECONDS = 90.0


def _activated(both: Tensor) -> Tensor:
    gate, up = both.chunk(2, -1)
    return F.silu(gate) * up


def _dense(a: Tensor, w13: Tensor) -> Tensor:
    return _activated(torch.mm(a, w13))


def _grouped(a: Tensor, w13: Tensor, offs: Tensor) -> Tensor:
    return _activated(torch._grouped_mm(a, w13, offs=offs))


def dense(case: GemmCase) -> Workload:
    """Normal bf16 tokens; gate and up are halves of n. The weights are scaled so that the gate is of size 1."""
    a, w13 = operand(case.m, case.k), (operand(case.n, case.k) * case.k**-0.5).t()
    return Workload(
        case=case.name,
        ours=lambda: pyptx_ops.gemm_swiglu(a, w13),
        peers={
            "cuBLAS": lambda: pyptx_ops.silu_and_mul(torch.mm(a, w13)),
            "apart": lambda: pyptx_ops.silu_and_mul(pyptx_ops.gemm(a, w13)),
        },
        excess=lambda: gemm_swiglu_excess(pyptx_ops.gemm_swiglu(a, w13), a, w13),
        work=2 * case.m * case.n * case.k / 1e6,
        unit="TF/s",
        moved=2 * (case.m * (case.k + case.n // 2) + case.k * case.n),
        tags={"kind": "decode, M <= 128" if case.m <= 128 else "large"},
        compiled={"compile": compiled(_dense, a, w13)},
    )


def grouped(case: GroupedCase) -> Workload:
    """The same by expert, of tokens that are sorted by expert."""
    counts = case.counts()
    a, offs = operand(case.rows, case.k), offs_of(counts)
    stored = operand(case.groups * case.n, case.k) * case.k**-0.5
    w13 = stored.view(case.groups, case.n, case.k).transpose(1, 2)
    return Workload(
        case=case.name,
        ours=lambda: pyptx_ops.grouped_gemm_swiglu(a, w13, offs),
        peers={
            "torch": lambda: pyptx_ops.silu_and_mul(torch._grouped_mm(a, w13, offs=offs)),
            "apart": lambda: pyptx_ops.silu_and_mul(pyptx_ops.grouped_gemm(a, w13, offs)),
        },
        excess=lambda: grouped_gemm_swiglu_excess(pyptx_ops.grouped_gemm_swiglu(a, w13, offs), a, w13, offs),
        work=2 * case.rows * case.n * case.k / 1e6,
        unit="TF/s",
        moved=2 * (case.rows * (case.k + case.n // 2) + int((counts > 0).sum()) * case.n * case.k),
        tags={"kind": "8 rows an expert" if case.rows == 8 * case.groups else f"{case.rows} rows"},
        compiled={"compile": compiled(_grouped, a, w13, offs)},
    )


def workloads(case: GemmCase | GroupedCase) -> Iterator[Workload]:
    yield grouped(case) if isinstance(case, GroupedCase) else dense(case)


@pytest.mark.parametrize("case", GATED + GATED_EXPERTS, ids=lambda case: case.name)
def test_gemm_swiglu(case: GemmCase | GroupedCase, compare: Callable[[Callable[[], Workload]], None]) -> None:
    compare(lambda: next(workloads(case)))


def main(arguments: Sequence[str] | None = None) -> int:
    cases = GATED + GATED_EXPERTS
    return harness.main("gemm_swiglu", cases, workloads, seconds=SECONDS, by="kind", arguments=arguments)


if __name__ == "__main__":
    sys.exit(main())
