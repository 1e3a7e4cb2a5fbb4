"""GEMM beside cuBLAS, and DeepGEMM where it is installed.

python -m benchmarks.bench_gemm [--quick] [--json]
pytest benchmarks/bench_gemm.py --benchmark-enable
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator, Sequence

import pytest
import torch
import torch.nn.functional as F

import pyptx_ops
from benchmarks import harness
from benchmarks.cases import GEMM, GemmCase
from benchmarks.harness import Workload
from benchmarks.products import operand
from benchmarks.timing import Call
from pyptx_ops.trials.bounds import product_excess

SECONDS = 45.0


def workload(case: GemmCase) -> Workload:
    """The product of normal bf16 numbers."""
    a, b = operand(case.m, case.k, case.layout[0]), operand(case.k, case.n, case.layout[1])
    peers: dict[str, Call] = {"cuBLAS": lambda: torch.mm(a, b)}
    if case.layout == "NT" and importlib.util.find_spec("deep_gemm"):
        deep_gemm = importlib.import_module("deep_gemm")
        weights, out = b.t(), torch.empty((case.m, case.n), dtype=a.dtype, device=a.device)
        peers["DeepGEMM"] = lambda: deep_gemm.bf16_gemm_nt(a, weights, out)
    return Workload(
        case=case.name,
        ours=lambda: pyptx_ops.gemm(a, b),
        peers=peers,
        excess=lambda: product_excess(pyptx_ops.gemm(a, b), a, b),
        work=2 * case.m * case.n * case.k / 1e6,
        unit="TF/s",
        moved=2 * (case.m * case.k + case.k * case.n + case.m * case.n),
        tags={"kind": kind(case)},
    )


def kind(case: GemmCase) -> str:
    if case.layout != "NT":
        return case.layout
    return (
        "decode, M <= 128"
        if case.m <= 128
        else "large, all >= 2048"
        if min(case.m, case.n, case.k) >= 2048
        else "between"
    )


def with_bias(case: GemmCase) -> Workload:
    """The same with a bias, which costs no pass of its own."""
    a, b, bias = operand(case.m, case.k), operand(case.k, case.n, "T"), operand(1, case.n)[0]
    weights = b.t()
    return Workload(
        case=f"{case.name} bias",
        ours=lambda: pyptx_ops.gemm(a, b, bias),
        peers={"cuBLAS": lambda: F.linear(a, weights, bias)},
        excess=lambda: product_excess(pyptx_ops.gemm(a, b, bias), a, b, bias),
        work=2 * case.m * case.n * case.k / 1e6,
        unit="TF/s",
        moved=2 * (case.m * case.k + case.k * case.n + case.m * case.n),
        tags={"kind": "bias"},
    )


LAYOUTS = tuple(GemmCase(4096, 4096, 4096, layout) for layout in ("NN", "TN", "TT"))
BIASED = (GemmCase(4096, 4096, 4096), GemmCase(16, 6144, 4096))


def workloads(case: GemmCase) -> Iterator[Workload]:
    yield workload(case)
    if case in BIASED:
        yield with_bias(case)


@pytest.mark.parametrize("case", GEMM + LAYOUTS, ids=lambda case: case.name)
def test_gemm(case: GemmCase, compare: Callable[[Callable[[], Workload]], None]) -> None:
    compare(lambda: workload(case))


def main(arguments: Sequence[str] | None = None) -> int:
    return harness.main("gemm", GEMM + LAYOUTS, workloads, seconds=SECONDS, by="kind", arguments=arguments)


if __name__ == "__main__":
    sys.exit(main())
