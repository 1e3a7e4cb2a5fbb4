"""RMSNorm, and RMSNorm of a sum, beside torch, torch.compile, and Liger and QuACK where they are installed.

python -m benchmarks.bench_rms_norm [--quick] [--json]
pytest benchmarks/bench_rms_norm.py --benchmark-enable
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator, Sequence

import pytest
import torch.nn.functional as F
from torch import Tensor

import pyptx_ops
from benchmarks import harness
from benchmarks.cases import NORM, NormCase
from benchmarks.harness import Workload
from benchmarks.products import operand
from benchmarks.timing import Call, compiled
from pyptx_ops.trials.bounds import fused_excess, norm_excess

SECONDS = 40.0
EPS = 1e-6


def _norm(x: Tensor, weight: Tensor) -> Tensor:
    return F.rms_norm(x, (x.shape[-1],), weight, EPS)


def _add_norm(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    total = x + residual
    return _norm(total, weight), total


def norm_workload(case: NormCase) -> Workload:
    x, weight = operand(case.rows, case.hidden), operand(1, case.hidden)[0]
    peers: dict[str, Call] = {"torch": lambda: _norm(x, weight)}
    if importlib.util.find_spec("liger_kernel"):
        liger = importlib.import_module("liger_kernel.ops.rms_norm").rms_norm_forward
        peers["Liger"] = lambda: liger(x, weight, EPS, 0.0, "llama", None)
    if importlib.util.find_spec("quack"):
        quack = importlib.import_module("quack.rmsnorm").rmsnorm
        peers["QuACK"] = lambda: quack(x, weight, eps=EPS)
    moved = 2 * x.numel() * x.element_size()
    return Workload(
        case=f"rms_norm {case.name}",
        ours=lambda: pyptx_ops.rms_norm(x, weight, EPS),
        peers=peers,
        excess=lambda: norm_excess(pyptx_ops.rms_norm(x, weight, EPS), x, weight, EPS),
        work=moved / 1e3,
        unit="GB/s",
        moved=moved,
        tags={"op": "rms_norm"},
        compiled={"compile": compiled(_norm, x, weight)},
    )


def add_norm_workload(case: NormCase) -> Workload:
    x, residual, weight = operand(case.rows, case.hidden), operand(case.rows, case.hidden), operand(1, case.hidden)[0]
    moved = 4 * x.numel() * x.element_size()
    return Workload(
        case=f"fused_add_rms_norm {case.name}",
        ours=lambda: pyptx_ops.fused_add_rms_norm(x, residual, weight, EPS),
        peers={"torch": lambda: _add_norm(x, residual, weight)},
        excess=lambda: fused_excess(pyptx_ops.fused_add_rms_norm(x, residual, weight, EPS), x, residual, weight, EPS),
        work=moved / 1e3,
        unit="GB/s",
        moved=moved,
        tags={"op": "fused_add_rms_norm"},
        compiled={"compile": compiled(_add_norm, x, residual, weight)},
    )


def workloads(case: NormCase) -> Iterator[Workload]:
    yield norm_workload(case)
    yield add_norm_workload(case)


@pytest.mark.parametrize("make", [norm_workload, add_norm_workload])
@pytest.mark.parametrize("case", NORM, ids=lambda case: case.name)
def test_rms_norm(
    case: NormCase, make: Callable[[NormCase], Workload], compare: Callable[[Callable[[], Workload]], None]
) -> None:
    compare(lambda: make(case))


def main(arguments: Sequence[str] | None = None) -> int:
    return harness.main("rms_norm", NORM, workloads, seconds=SECONDS, by="op", arguments=arguments)


if __name__ == "__main__":
    sys.exit(main())
