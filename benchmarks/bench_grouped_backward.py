"""Both gradients of grouped GEMM beside torch's own and a loop of matmuls.

python -m benchmarks.bench_grouped_backward [--quick] [--json]
pytest benchmarks/bench_grouped_backward.py --benchmark-enable
"""

from __future__ import annotations

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
from pyptx_ops.trials.bounds import grouped_excess, ragged_k_excess

SECONDS = 60.0
LEAST_ROWS = 4096  # of a training step
TRAINED = tuple(case for case in GROUPED if case.rows >= LEAST_ROWS)


def dgrad(case: GroupedCase) -> Workload:
    """Of the tokens: normal gradients (rows, n) times weights that are stored as (groups, n, k)."""
    counts = case.counts()
    dy, weights = operand(case.rows, case.n), operand(case.groups * case.n, case.k).view(case.groups, case.n, case.k)
    offs, parts = offs_of(counts), _parts(counts)
    return _workload(
        case, "dgrad",
        ours=lambda: pyptx_ops.grouped_gemm(dy, weights, offs),
        peers={
            "torch": lambda: torch._grouped_mm(dy, weights, offs=offs),
            "loop": lambda: [dy[part] @ weights[g] for g, part in parts],
        },
        excess=lambda: grouped_excess(pyptx_ops.grouped_gemm(dy, weights, offs), dy, weights, offs),
    )  # fmt: skip


def wgrad(case: GroupedCase) -> Workload:
    """Of the weights, as (groups, n, k): transposed gradients times normal tokens, over the rows of each group."""
    counts = case.counts()
    x, dy = operand(case.rows, case.k), operand(case.rows, case.n)
    offs, parts = offs_of(counts), _parts(counts)
    return _workload(
        case, "wgrad",
        ours=lambda: pyptx_ops.grouped_gemm(dy.t(), x, offs),
        peers={
            "torch": lambda: torch._grouped_mm(dy.t(), x, offs=offs),
            "loop": lambda: [dy[part].t() @ x[part] for _, part in parts],
        },
        excess=lambda: ragged_k_excess(pyptx_ops.grouped_gemm(dy.t(), x, offs), dy.t(), x, offs),
    )  # fmt: skip


def _workload(
    case: GroupedCase, kind: str, ours: Call, peers: dict[str, Call], excess: Callable[[], float]
) -> Workload:
    written = case.groups if kind == "wgrad" else int((case.counts() > 0).sum())  # matrices; or those that are read
    return Workload(
        case=f"{kind} {case.name}",
        ours=ours,
        peers=peers,
        excess=excess,
        work=2 * case.rows * case.n * case.k / 1e6,
        unit="TF/s",
        moved=2 * (case.rows * (case.k + case.n) + written * case.n * case.k),
        tags={"kind": f"{kind}, {case.rows} rows", "skew": case.skew},
    )


def _parts(counts: Tensor) -> list[tuple[int, slice]]:
    """(group, its rows) of every group that has some; the host knows them already."""
    ends = counts.cumsum(0).tolist()
    return [(g, slice(end - n, end)) for g, (n, end) in enumerate(zip(counts.tolist(), ends, strict=True)) if n]


def workloads(case: GroupedCase) -> Iterator[Workload]:
    yield dgrad(case)
    yield wgrad(case)


@pytest.mark.parametrize("which", [dgrad, wgrad])
@pytest.mark.parametrize("case", TRAINED, ids=lambda case: case.name)
def test_grouped_gradients(
    case: GroupedCase, which: Callable[[GroupedCase], Workload], compare: Callable[[Callable[[], Workload]], None]
) -> None:
    compare(lambda: which(case))


def main(arguments: Sequence[str] | None = None) -> int:
    return harness.main("grouped_backward", TRAINED, workloads, seconds=SECONDS, by="kind", arguments=arguments)


if __name__ == "__main__":
    sys.exit(main())
