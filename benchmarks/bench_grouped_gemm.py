"""Grouped GEMM beside torch's own, a loop of matmuls, and DeepGEMM where it is installed.

python -m benchmarks.bench_grouped_gemm [--quick] [--json]
pytest benchmarks/bench_grouped_gemm.py --benchmark-enable
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator, Sequence

import pytest
import torch
from torch import Tensor

import pyptx_ops
from benchmarks import harness
from benchmarks.cases import GROUPED, GroupedCase
from benchmarks.harness import Workload
from benchmarks.products import offs_of, operand
from benchmarks.timing import Call
from pyptx_ops.trials.bounds import grouped_excess

SECONDS = 55.0


def workload(case: GroupedCase) -> Workload:
    """Normal bf16 tokens, sorted by expert, times weights that are stored as (groups, n, k)."""
    counts = case.counts()
    a, stored = operand(case.rows, case.k), operand(case.groups * case.n, case.k).view(case.groups, case.n, case.k)
    b, offs = stored.transpose(1, 2), offs_of(counts)
    peers: dict[str, Call] = {
        "torch": lambda: torch._grouped_mm(a, b, offs=offs),
        "loop": _loop(a, b, counts.cumsum(0).tolist()),
    }
    if importlib.util.find_spec("deep_gemm"):
        peers["DeepGEMM"] = _deep_gemm(counts, stored)
    used = int((counts > 0).sum())
    return Workload(
        case=case.name,
        ours=lambda: pyptx_ops.grouped_gemm(a, b, offs),
        peers=peers,
        excess=lambda: grouped_excess(pyptx_ops.grouped_gemm(a, b, offs), a, b, offs),
        work=2 * case.rows * case.n * case.k / 1e6,
        unit="TF/s",
        moved=2 * (case.rows * (case.k + case.n) + used * case.n * case.k),
        tags={"kind": "8 rows an expert" if case.rows == 8 * case.groups else f"{case.rows} rows", "skew": case.skew},
    )


def _loop(a: Tensor, b: Tensor, ends: list[int]) -> Call:
    """One matmul per expert, with group sizes that the host knows already."""
    starts = [0, *ends[:-1]]
    return lambda: [a[s:e] @ b[g] for g, (s, e) in enumerate(zip(starts, ends, strict=True)) if e > s]


def _deep_gemm(counts: Tensor, weights: Tensor) -> Call:
    """DeepGEMM wants every expert's rows padded to its alignment; the padding is not part of its time."""
    deep_gemm = importlib.import_module("deep_gemm")
    alignment = deep_gemm.get_mk_alignment_for_contiguous_layout()
    padded = (counts + alignment - 1) // alignment * alignment
    expert = torch.cat(
        [
            torch.cat((torch.full((n,), g, dtype=torch.int32), torch.full((p - n,), -1, dtype=torch.int32)))
            for g, (n, p) in enumerate(zip(counts.tolist(), padded.tolist(), strict=True))
        ]
    ).to(weights.device)
    a = operand(int(padded.sum()), weights.shape[2])
    out = torch.empty((a.shape[0], weights.shape[1]), dtype=a.dtype, device=a.device)
    return lambda: deep_gemm.m_grouped_bf16_gemm_nt_contiguous(a, weights, out, expert)


def workloads(case: GroupedCase) -> Iterator[Workload]:
    yield workload(case)


@pytest.mark.parametrize("case", GROUPED, ids=lambda case: case.name)
def test_grouped_gemm(case: GroupedCase, compare: Callable[[Callable[[], Workload]], None]) -> None:
    compare(lambda: workload(case))


def main(arguments: Sequence[str] | None = None) -> int:
    return harness.main("grouped_gemm", GROUPED, workloads, seconds=SECONDS, by="kind", arguments=arguments)


if __name__ == "__main__":
    sys.exit(main())
