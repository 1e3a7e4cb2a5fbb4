"""What an eager call costs the host: wall time on problems that are too small for the GPU to matter.

python -m benchmarks.bench_overhead [--json]
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import pyptx_ops
from benchmarks import harness
from benchmarks.harness import OURS, Workload
from benchmarks.products import offs_of, operand
from benchmarks.timing import Call, Clock, interleaved
from pyptx_ops.tables import table
from pyptx_ops.trials.bounds import fused_excess, grouped_excess, norm_excess, product_excess, silu_excess

SECONDS = 20.0
SIZE = 64
GROUPS = 4
BATCH = 100  # calls that are enqueued before the host waits: fewer than the driver's queue holds
EPS = 1e-6


class WallClock:
    """Host time per call, over batches of calls that do not wait for the device."""

    overhead_us = 1.0

    def __init__(self, batch: int) -> None:
        self._batch = batch

    def samples(self, calls: Sequence[Call], rounds: int) -> list[list[float]]:
        times: list[list[float]] = [[] for _ in calls]
        gc.disable()
        try:
            for _ in range(rounds):
                for call, found in zip(calls, times, strict=True):
                    found.append(self._one(call))
        finally:
            gc.enable()
        return times

    def _one(self, call: Call) -> float:
        repeat = range(self._batch)
        began = time.perf_counter()
        for _ in repeat:
            call()
        us = (time.perf_counter() - began) / self._batch * 1e6
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return us


def matrix_calls(grad: bool) -> Iterator[tuple[str, str, Call, Call, Callable[[], float]]]:
    """(op, peer's name, ours, the peer's, error over bound)."""
    a, w = operand(SIZE, SIZE).requires_grad_(grad), operand(SIZE, SIZE, "T")
    yield (
        "gemm", "torch.mm",
        lambda: pyptx_ops.gemm(a, w), lambda: torch.mm(a, w),
        lambda: product_excess(pyptx_ops.gemm(a, w).detach(), a.detach(), w),
    )  # fmt: skip
    b = operand(GROUPS * SIZE, SIZE).view(GROUPS, SIZE, SIZE).transpose(1, 2)
    offs = offs_of(torch.full((GROUPS,), SIZE // GROUPS))
    yield (
        "grouped_gemm", "torch._grouped_mm",
        lambda: pyptx_ops.grouped_gemm(a, b, offs), lambda: torch._grouped_mm(a, b, offs=offs),
        lambda: grouped_excess(pyptx_ops.grouped_gemm(a, b, offs).detach(), a.detach(), b, offs),
    )  # fmt: skip


def row_calls(grad: bool) -> Iterator[tuple[str, str, Call, Call, Callable[[], float]]]:
    x, residual, weight = operand(SIZE, SIZE).requires_grad_(grad), operand(SIZE, SIZE), operand(1, SIZE)[0]
    packed = operand(SIZE, 2 * SIZE).requires_grad_(grad)
    values = x.detach()

    def add_norm() -> tuple[Tensor, Tensor]:
        total = x + residual
        return F.rms_norm(total, (SIZE,), weight, EPS), total

    def silu_mul() -> Tensor:
        gate, up = packed.chunk(2, -1)
        return F.silu(gate) * up

    def fused() -> tuple[Tensor, Tensor]:
        return pyptx_ops.fused_add_rms_norm(x, residual, weight, EPS)

    yield (
        "rms_norm", "F.rms_norm",
        lambda: pyptx_ops.rms_norm(x, weight, EPS), lambda: F.rms_norm(x, (SIZE,), weight, EPS),
        lambda: norm_excess(pyptx_ops.rms_norm(x, weight, EPS).detach(), values, weight, EPS),
    )  # fmt: skip
    yield (
        "fused_add_rms_norm", "add, F.rms_norm", fused, add_norm,
        lambda: fused_excess((fused()[0].detach(), fused()[1].detach()), values, residual, weight, EPS),
    )  # fmt: skip
    yield (
        "silu_and_mul", "silu * up",
        lambda: pyptx_ops.silu_and_mul(packed), silu_mul,
        lambda: silu_excess(pyptx_ops.silu_and_mul(packed).detach(), *packed.detach().chunk(2, -1)),
    )  # fmt: skip
    yield (
        "swiglu", "silu * up",
        lambda: pyptx_ops.swiglu(x, residual), lambda: F.silu(x) * residual,
        lambda: silu_excess(pyptx_ops.swiglu(x, residual).detach(), values, residual),
    )  # fmt: skip


def workloads(mode: str) -> Iterator[Workload]:
    """mode: "plain" (grad mode on, nothing requires grad), "no_grad" or "requires_grad" (one input does)."""
    grad = mode == "requires_grad"
    for calls in (matrix_calls(grad), row_calls(grad)):
        for op, peer, ours, theirs, excess in calls:
            case, tags = f"{op} {mode}", {"op": op, "mode": mode}
            yield Workload(case, ours, {peer: theirs}, excess, 1.0, "calls/us", 0, tags)


def measured(workload: Workload, clock: Clock, seconds: float) -> dict[str, float | str]:
    with torch.no_grad() if workload.tags["mode"] == "no_grad" else torch.enable_grad():
        return harness.measure(workload, clock, seconds)


MODES = ("plain", "no_grad", "requires_grad")


def main(arguments: Sequence[str] | None = None) -> int:
    given = harness.options("overhead", SECONDS, arguments)
    if not harness.has_gpu():
        return 2
    clock = WallClock(BATCH)
    everything = [one for mode in MODES for one in workloads(mode) if given.only in one.case]
    rows: list[dict[str, Any]] = []
    lines: list[list[object]] = []
    failures: list[str] = []
    for workload in everything:
        try:
            times = measured(workload, clock, given.budget / 2 / max(1, len(everything)))
        except (ValueError, RuntimeError) as error:
            torch.cuda.synchronize()  # raises where the device is lost: then nothing after this means anything
            failures.append(f"{workload.case}: {error}")
            continue
        rows += rows_of(workload, times)
        (peer, theirs), ours = next((n, t) for n, t in times.items() if n != OURS), times[OURS]
        ratio = f"{ours / theirs:.2f}" if isinstance(ours, float) and isinstance(theirs, float) else None
        shown = f"{theirs:.1f}" if isinstance(theirs, float) else theirs[:30]
        lines.append([workload.tags["op"], workload.tags["mode"], f"{ours:.1f}", peer, shown, ratio])
    print(table(("op", "mode", "us a call", "peer", "us a call", "ours / peer"), lines))
    empty = interleaved({"empty": lambda: torch.empty((SIZE, SIZE), device="cuda")}, clock, 0.1)["empty"]
    print(f"torch.empty: {empty:.1f} us")
    harness.report(given, "overhead", rows, "op", failures, {"batch": BATCH, "empty_us": round(empty, 2)})
    return 1 if failures else 0


def rows_of(workload: Workload, times: Mapping[str, float | str]) -> list[dict[str, Any]]:
    """As in the other records, without a rate."""
    return [
        {key: value for key, value in row.items() if key not in ("rate", "unit")}
        for row in harness.rows_of(workload, times, None)
    ]


if __name__ == "__main__":
    sys.exit(main())
