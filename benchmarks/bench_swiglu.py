"""silu(gate) * up, packed and in two tensors, and its gradients, beside torch, torch.compile, and Liger if installed.

python -m benchmarks.bench_swiglu [--quick] [--json]
pytest benchmarks/bench_swiglu.py --benchmark-enable
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator, Sequence

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import pyptx_ops
from benchmarks import harness
from benchmarks.cases import SWIGLU, SwigluCase
from benchmarks.harness import Workload
from benchmarks.products import operand
from benchmarks.timing import Call, compiled
from pyptx_ops.trials.bounds import silu_excess, silu_gradients_excess

SECONDS = 20.0


def _swiglu(gate: Tensor, up: Tensor) -> Tensor:
    return F.silu(gate) * up


def _packed(x: Tensor) -> Tensor:
    return _swiglu(*x.chunk(2, -1))


def _gradients(dy: Tensor, gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    values, wide = gate.float(), dy.float()
    sigmoid = torch.sigmoid(values)
    silu = values * sigmoid
    return (wide * up.float() * (sigmoid + silu * (1 - sigmoid))).to(gate.dtype), (wide * silu).to(gate.dtype)


def packed_workload(case: SwigluCase) -> Workload:
    x = operand(case.rows, 2 * case.width)
    moved = 3 * case.rows * case.width * x.element_size()
    return Workload(
        case=f"silu_and_mul {case.name}",
        ours=lambda: pyptx_ops.silu_and_mul(x),
        peers={"torch": lambda: _packed(x)},
        excess=lambda: silu_excess(pyptx_ops.silu_and_mul(x), *x.chunk(2, -1)),
        work=moved / 1e3,
        unit="GB/s",
        moved=moved,
        tags={"op": "silu_and_mul"},
        compiled={"compile": compiled(_packed, x)},
    )


def swiglu_workload(case: SwigluCase) -> Workload:
    gate, up = operand(case.rows, case.width), operand(case.rows, case.width)
    peers: dict[str, Call] = {"torch": lambda: _swiglu(gate, up)}
    if importlib.util.find_spec("liger_kernel"):
        liger = importlib.import_module("liger_kernel.ops.swiglu").swiglu_forward
        peers["Liger"] = lambda: liger(gate, up)
    moved = 3 * gate.numel() * gate.element_size()
    return Workload(
        case=f"swiglu {case.name}",
        ours=lambda: pyptx_ops.swiglu(gate, up),
        peers=peers,
        excess=lambda: silu_excess(pyptx_ops.swiglu(gate, up), gate, up),
        work=moved / 1e3,
        unit="GB/s",
        moved=moved,
        tags={"op": "swiglu"},
        compiled={"compile": compiled(_swiglu, gate, up)},
    )


def backward_workload(case: SwigluCase) -> Workload:
    """The backward pass alone: ours by its op, torch's as autograd runs it, and its formula compiled."""
    gate, up, dy = (operand(case.rows, case.width) for _ in range(3))
    leaves = gate.clone().requires_grad_(), up.clone().requires_grad_()
    result = _swiglu(*leaves)
    moved = 5 * gate.numel() * gate.element_size()
    return Workload(
        case=f"swiglu_bwd {case.name}",
        ours=lambda: torch.ops.pyptx.swiglu_bwd(dy, gate, up),
        peers={"torch": lambda: torch.autograd.grad(result, leaves, dy, retain_graph=True)},
        excess=lambda: silu_gradients_excess(*torch.ops.pyptx.swiglu_bwd(dy, gate, up), dy, gate, up),
        work=moved / 1e3,
        unit="GB/s",
        moved=moved,
        tags={"op": "swiglu_bwd"},
        compiled={"compile": compiled(_gradients, dy, gate, up)},
    )


WORKLOADS = (packed_workload, swiglu_workload, backward_workload)


def workloads(case: SwigluCase) -> Iterator[Workload]:
    for make in WORKLOADS:
        yield make(case)


@pytest.mark.parametrize("make", WORKLOADS)
@pytest.mark.parametrize("case", SWIGLU, ids=lambda case: case.name)
def test_swiglu(
    case: SwigluCase, make: Callable[[SwigluCase], Workload], compare: Callable[[Callable[[], Workload]], None]
) -> None:
    compare(lambda: make(case))


def main(arguments: Sequence[str] | None = None) -> int:
    return harness.main("swiglu", SWIGLU, workloads, seconds=SECONDS, by="op", arguments=arguments)


if __name__ == "__main__":
    sys.exit(main())
