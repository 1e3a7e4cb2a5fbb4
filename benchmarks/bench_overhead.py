"""What an eager call costs the host: wall time on problems that are too small for the GPU to matter.

python -m benchmarks.bench_overhead [--json]

A host's speed varies by half within seconds where others share its cores. So all calls of all modes take turns, a
batch each, many times over, and two figures come out: the median, and the fast one, that a tenth of the batches stay
below. What torch.empty and an op that does nothing take goes with them.
"""

from __future__ import annotations

import functools
import gc
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import pyptx_ops
from benchmarks import harness
from benchmarks.harness import OURS, Workload
from benchmarks.products import offs_of, operand
from benchmarks.timing import Call
from pyptx_ops.tables import table
from pyptx_ops.trials.bounds import (
    fused_excess,
    grouped_excess,
    norm_excess,
    product_excess,
    ragged_k_excess,
    silu_excess,
    silu_gradients_excess,
)

SECONDS = 20.0
SIZE = 64
GROUPS = 4
BATCH = 100  # calls that are enqueued before the host waits: fewer than the driver's queue holds
EPS = 1e-6


@dataclass(frozen=True)
class Timed:
    """A call to time, and its host time in µs per call in each round."""

    workload: Workload
    name: str
    call: Call
    us: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        return statistics.median(self.us)

    @property
    def fast(self) -> float:
        return sorted(self.us)[len(self.us) // 10]


def take_turns(calls: Sequence[Timed], batch: int, seconds: float) -> None:
    """Times batches of calls that do not wait for the device, in turns until the time is up, three rounds at least."""
    end = time.perf_counter() + seconds
    gc.disable()
    try:
        for timed in calls:
            _batch_us(timed, batch)  # warm-up
        while len(calls[-1].us) < 3 or time.perf_counter() < end:
            for timed in calls:
                timed.us.append(_batch_us(timed, batch))
    finally:
        gc.enable()


def _batch_us(timed: Timed, batch: int) -> float:
    call, repeat = timed.call, range(batch)
    with torch.set_grad_enabled(timed.workload.tags["mode"] != "no_grad"):
        began = time.perf_counter()
        for _ in repeat:
            call()
        us = (time.perf_counter() - began) / batch * 1e6
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return us


Calls = Iterator[tuple[str, str, Call, Call, Callable[[], float]]]
"""(op, peer's name, ours, the peer's, error over bound) of each."""


def matrix_calls(grad: bool) -> Calls:
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
    dy = operand(SIZE, SIZE)
    yield (
        "grouped_gemm along K", "torch._grouped_mm",
        lambda: pyptx_ops.grouped_gemm(a.t(), dy, offs), lambda: torch._grouped_mm(a.t(), dy, offs=offs),
        lambda: ragged_k_excess(pyptx_ops.grouped_gemm(a.t(), dy, offs).detach(), a.detach().t(), dy, offs),
    )  # fmt: skip


def row_calls(grad: bool) -> Calls:
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


def inplace_calls(grad: bool) -> Calls:
    """Of what takes no part in autograd."""
    if grad:
        return
    x, residual, weight = operand(SIZE, SIZE), operand(SIZE, SIZE), operand(1, SIZE)[0]

    def add_norm_() -> None:
        residual.add_(x)
        x.copy_(F.rms_norm(residual, (SIZE,), weight, EPS))

    def excess() -> float:
        before = x.clone(), residual.clone()
        pyptx_ops.fused_add_rms_norm_(x, residual, weight, EPS)
        return fused_excess((x, residual), *before, weight, EPS)

    yield (
        "fused_add_rms_norm_", "add_, F.rms_norm, copy_",
        lambda: pyptx_ops.fused_add_rms_norm_(x, residual, weight, EPS), add_norm_, excess,
    )  # fmt: skip


def gradient_calls(grad: bool) -> Calls:
    """Of what autograd calls: no input of theirs requires grad unless they are to be differentiated again."""
    if grad:
        return
    ops, packed, dy = torch.ops.pyptx, operand(SIZE, 2 * SIZE), operand(SIZE, SIZE)
    gate, up = packed.chunk(2, -1)

    def parts() -> tuple[Tensor, Tensor]:
        return torch.ops.aten.silu_backward(dy * up, gate), F.silu(gate) * dy

    yield (
        "silu_and_mul_bwd", "silu_backward, silu, 2 mul, cat",
        lambda: ops.silu_and_mul_bwd(dy, packed), lambda: torch.cat(parts(), -1),
        lambda: silu_gradients_excess(*ops.silu_and_mul_bwd(dy, packed).chunk(2, -1), dy, gate, up),
    )  # fmt: skip
    yield (
        "swiglu_bwd", "silu_backward, silu, 2 mul",
        lambda: ops.swiglu_bwd(dy, gate, up), parts,
        lambda: silu_gradients_excess(*ops.swiglu_bwd(dy, gate, up), dy, gate, up),
    )  # fmt: skip


def yardsticks() -> Iterator[Workload]:
    """What the host takes for less: an allocation, and a Python op that does nothing."""
    library = torch.library.Library("pyptx_overhead", "DEF")
    library.define("nothing(Tensor x) -> ()")
    library.impl("nothing", lambda x: None, "Autograd")
    x = operand(SIZE, SIZE)
    # The library lives as long as the call that uses it.
    nothing = functools.partial(lambda op, x, library: op(x), torch.ops.pyptx_overhead.nothing.default, x, library)
    for name, call in (("torch.empty", lambda: torch.empty_like(x)), ("an op of nothing", nothing)):
        yield Workload(name, call, {}, lambda: 0.0, 1.0, "calls/us", 0, {"op": name, "mode": "plain"})


def workloads(mode: str) -> Iterator[Workload]:
    """mode: "plain" (grad mode on, nothing requires grad), "no_grad" or "requires_grad" (one input does)."""
    grad = mode == "requires_grad"
    for calls in (matrix_calls(grad), row_calls(grad), inplace_calls(grad), gradient_calls(grad)):
        for op, peer, ours, theirs, excess in calls:
            yield Workload(f"{op} {mode}", ours, {peer: theirs}, excess, 1.0, "calls/us", 0, {"op": op, "mode": mode})


MODES = ("plain", "no_grad", "requires_grad")


def main(arguments: Sequence[str] | None = None) -> int:
    given = harness.options("overhead", SECONDS, arguments)
    if not harness.has_gpu():
        return 2
    calls: list[Timed] = []
    failures: list[str] = []
    for workload in (one for mode in MODES for one in workloads(mode) if given.only in one.case):
        try:
            admitted, refused = harness.admitted(workload)
        except (ValueError, RuntimeError) as error:
            torch.cuda.synchronize()  # raises where the device is lost: then nothing after this means anything
            failures.append(f"{workload.case}: {error}")
            continue
        failures += [f"{workload.case}: {peer}: {error}" for peer, error in refused.items()]
        calls += [Timed(workload, name, call) for name, call in admitted.items()]
    measured = [Timed(workload, workload.case, workload.ours) for workload in yardsticks()]
    take_turns([*calls, *measured], BATCH, given.budget / 2)
    rows = rows_of(calls)
    print(table(("op", "mode", "whose", "us", "fast", "peer / ours"), [line_of(row) for row in rows]))
    host = {timed.name: {"us": round(timed.median, 2), "us_fast": round(timed.fast, 2)} for timed in measured}
    print("\n".join(f"{name}: {found['us']} us, fast {found['us_fast']}" for name, found in host.items()))
    described = {"batch": BATCH, "rounds": len(measured[0].us), "host": host}
    harness.report(given, "overhead", rows, "op", failures, described)
    return 1 if failures else 0


def rows_of(calls: Sequence[Timed]) -> list[dict[str, Any]]:
    """As in the other records. us, ratio: of the medians; us_fast, ratio_fast: of the fast figures."""
    rows = []
    for timed in calls:
        if timed.name == OURS:
            ours = timed
        rows.append(
            {
                "case": timed.workload.case, "peer": timed.name, **timed.workload.tags,
                "us": round(timed.median, 2), "us_fast": round(timed.fast, 2),
                "ratio": round(timed.median / ours.median, 4), "ratio_fast": round(timed.fast / ours.fast, 4),
            }
        )  # fmt: skip
    return rows


def line_of(row: Mapping[str, Any]) -> list[object]:
    ratio = None if row["peer"] == OURS else f"{row['ratio']:.2f}"
    return [row["op"], row["mode"], row["peer"], f"{row['us']:.1f}", f"{row['us_fast']:.1f}", ratio]


if __name__ == "__main__":
    sys.exit(main())
