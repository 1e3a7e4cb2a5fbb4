"""Error bounds that follow from the arithmetic of an op, and how far a result is from the fp64 truth in units of them.

An op may be off by the rounding of its result (`unit(dtype)` of the value) and by what its fp32 arithmetic loses, which
is bounded per op below. An excess is the largest error over its bound: at most 1 where a result is right, infinite
where it has another shape.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from ..ops import fused_add_rms_norm as fused
from ..ops import rms_norm as norm
from ..ops import swiglu
from ..ops._swiglu import gradients, split
from ..ops.gemm import reference

__all__ = [
    "FP32", "accumulation_bound", "excess", "fused_excess", "gemm_swiglu_excess", "grouped_excess",
    "grouped_gemm_swiglu_excess", "norm_bound", "norm_excess", "product_bound", "product_excess",
    "ragged_k_excess", "rounding_bound", "silu_bound", "silu_excess", "silu_gradients_excess", "slope_bound", "unit",
]  # fmt: skip

FP32 = 2.0**-24  # unit roundoff
BLOCK_ELEMENTS = 1 << 27  # of results that are compared at once: a large one needs no more than a few GB beside it


def unit(dtype: torch.dtype) -> float:
    """The largest relative error of one rounding to `dtype`."""
    return torch.finfo(dtype).eps / 2


def rounding_bound(truth: Tensor, dtype: torch.dtype, roundings: int = 1) -> Tensor:
    """Absolute error of rounding `truth` to `dtype` once or several times in a row, subnormal numbers included."""
    info = torch.finfo(dtype)
    return truth.abs() * ((1 + unit(dtype)) ** roundings - 1) + roundings * info.smallest_normal * info.eps


def product_bound(truth: Tensor, magnitude: Tensor, k: int, dtype: torch.dtype) -> Tensor:
    """Of a sum of `k` products accumulated in fp32 and rounded once to `dtype`.

    Args:
        truth: the product in fp64.
        magnitude: `|a| @ |b| + |bias|` in fp64, to which every partial sum's error is relative.
        k: number of terms. The bound for sure is k roundings; errors of random data grow with sqrt(k), for which 8
            standard deviations are allowed. Tensor cores truncate, which doubles the unit.
        dtype: of the result.
    """
    accumulated = accumulation_bound(magnitude, k)
    return accumulated + rounding_bound(truth.abs() + accumulated, dtype)


def accumulation_bound(magnitude: Tensor, k: int) -> Tensor:
    """The same before the rounding."""
    return magnitude * (2 * FP32 * min(k + 1.0, 8 * math.sqrt(k + 1.0)))


def norm_bound(truth: Tensor, hidden: int, dtype: torch.dtype, roundings: int = 1) -> Tensor:
    """Of a norm over `hidden` elements: a mean of fp32 squares, an approximate rsqrt, and 1 or 2 roundings."""
    relative = FP32 * (16 + min(hidden, 8 * math.sqrt(hidden)))
    return truth.abs() * relative + rounding_bound(truth * (1 + relative), dtype, roundings)


def silu_bound(truth: Tensor, gate: Tensor, dtype: torch.dtype) -> Tensor:
    """Of silu(gate) * up: the exponential's error grows with its argument; results under fp32's range may be zero."""
    relative = FP32 * (16 + 4 * gate.double().abs())
    flushed = torch.finfo(torch.float32).smallest_normal * 128
    return truth.abs() * relative + rounding_bound(truth * (1 + relative), dtype) + flushed


def slope_bound(truth: Tensor, gate: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """Of scale * silu'(gate), a sum s + silu * (1 - s): the errors of s = sigmoid(gate) and of 1 - s are relative to
    the terms, which cancel near gate = -1.28, and not to the sum."""
    wide = gate.double()
    sigmoid = torch.sigmoid(wide)
    relative = FP32 * (16 + 4 * wide.abs())
    flushed = torch.finfo(torch.float32).smallest_normal * 128 * (1 + wide.abs())
    lost = scale.double().abs() * ((sigmoid + (wide * sigmoid).abs()) * relative + flushed) + flushed
    return lost + rounding_bound(truth.abs() + lost, dtype)


def excess(actual: Tensor, truth: Tensor, bound: Tensor | float) -> Tensor:
    """Error over bound of every element: at most 1 where it is within. Infinite for a NaN or infinity in one only."""
    error = (actual.double() - truth.double()).abs()
    same = (actual.double() == truth.double()) | (actual.isnan() & truth.isnan())
    ratio = torch.where(same, 0.0, error / torch.as_tensor(bound, device=error.device).double().clamp_min(1e-300))
    return ratio.nan_to_num(nan=math.inf)


def product_excess(out: Tensor, a: Tensor, b: Tensor, bias: Tensor | None = None) -> float:
    """The largest error over bound of out = a @ b + bias, all two-dimensional; at most 1 if it is right."""
    if out.shape != (a.shape[0], b.shape[1]):
        return math.inf
    wide, wide_bias = b.double(), None if bias is None else bias.double()
    magnitude, magnitude_bias = wide.abs(), None if bias is None else bias.double().abs()
    worst = 0.0
    for rows in _blocks(out):
        left = a[rows].double()
        truth = reference(left, wide, wide_bias)
        bound = product_bound(truth, reference(left.abs(), magnitude, magnitude_bias), a.shape[1], out.dtype)
        worst = max(worst, float(excess(out[rows], truth, bound).max()))
    return worst


def grouped_excess(out: Tensor, a: Tensor, b: Tensor, offs: Tensor, bias: Tensor | None = None) -> float:
    """The same of grouped rows; rows past the last group must be exactly zero."""
    if out.shape != (a.shape[0], b.shape[2]):
        return math.inf
    worst, start = 0.0, 0
    for group, end in enumerate(offs.tolist()):
        if end > start:
            one_bias = None if bias is None else bias[group]
            worst = max(worst, product_excess(out[start:end], a[start:end], b[group], one_bias))
        start = end
    return worst if bool((out[start:] == 0).all()) else math.inf


def gemm_swiglu_excess(
    out: Tensor, a: Tensor, w13: Tensor, bias: Tensor | None = None, interleaved: bool = False
) -> float:
    """The largest error over bound of out = silu(gate) * up of a @ w13 + bias, all two-dimensional.

    The errors of the unrounded gate and up pass through the activation, whose slope changes by less than 0.5.
    """
    if out.shape != (a.shape[0], w13.shape[1] // 2):
        return math.inf
    wide, wide_bias = w13.double(), None if bias is None else bias.double()
    magnitude_bias = None if bias is None else bias.double().abs()
    worst = 0.0
    for rows in _blocks(out):
        left = a[rows].double()
        gate, up = split(reference(left, wide, wide_bias), interleaved)
        lost = accumulation_bound(reference(left.abs(), wide.abs(), magnitude_bias), a.shape[1])
        lost_gate, lost_up = split(lost, interleaved)
        truth = swiglu.reference(gate, up)
        slope, _ = gradients(torch.ones_like(gate), gate, torch.ones_like(gate))
        bent = (slope.abs() + lost_gate / 4) * lost_gate
        passed = bent * (up.abs() + lost_up) + F.silu(gate).abs() * lost_up
        bound = passed + silu_bound(truth.abs() + passed, gate.abs() + lost_gate, out.dtype)
        worst = max(worst, float(excess(out[rows], truth, bound).max()))
    return worst


def grouped_gemm_swiglu_excess(
    out: Tensor, a: Tensor, w13: Tensor, offs: Tensor, bias: Tensor | None = None, interleaved: bool = False
) -> float:
    """The same of grouped rows; rows past the last group must be exactly zero."""
    if out.shape != (a.shape[0], w13.shape[2] // 2):
        return math.inf
    worst, start = 0.0, 0
    for group, end in enumerate(offs.tolist()):
        if end > start:
            one_bias = None if bias is None else bias[group]
            one = gemm_swiglu_excess(out[start:end], a[start:end], w13[group], one_bias, interleaved)
            worst = max(worst, one)
        start = end
    return worst if bool((out[start:] == 0).all()) else math.inf


def ragged_k_excess(out: Tensor, a: Tensor, b: Tensor, offs: Tensor, bias: Tensor | None = None) -> float:
    """The same where groups divide K: of out[g] = a[:, of g] @ b[of g] + bias[g]; zero, or the bias, if g is empty."""
    if out.shape != (offs.shape[0], a.shape[0], b.shape[1]):
        return math.inf
    worst, start = 0.0, 0
    for group, end in enumerate(offs.tolist()):
        one_bias = None if bias is None else bias[group]
        worst = max(worst, product_excess(out[group], a[:, start:end], b[start:end], one_bias))
        if end == start and bool((out[group] != (0 if one_bias is None else one_bias)).any()):
            return math.inf
        start = end
    return worst


def _blocks(out: Tensor) -> Iterator[slice]:
    """Slices of rows that hold few enough elements; none where there are no elements."""
    if out.numel() == 0:
        return
    step = max(1, BLOCK_ELEMENTS // out.shape[1])
    for start in range(0, out.shape[0], step):
        yield slice(start, start + step)


def _worst(out: Tensor, truth: Tensor, bound: Tensor) -> float:
    if out.shape != truth.shape:
        return math.inf
    return float(excess(out, truth, bound).max()) if out.numel() else 0.0


def norm_excess(
    out: Tensor, x: Tensor, weight: Tensor | None, eps: float = 1e-6, offset: float = 0.0, cast: bool = True
) -> float:
    """The largest error over bound of out = rms_norm(x, weight, eps, offset, cast)."""
    truth = norm.reference(x.double(), None if weight is None else weight.double(), eps, offset, cast)
    return _worst(out, truth, norm_bound(truth, x.shape[-1], out.dtype, _roundings(weight, cast)))


def fused_excess(
    out: tuple[Tensor, Tensor],
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None,
    eps: float = 1e-6,
    offset: float = 0.0,
    cast: bool = True,
) -> float:
    """The same of both results of fused_add_rms_norm. The fp32 sum may be off by one rounding of its terms."""
    wide = None if weight is None else weight.double()
    truth, total = fused.reference(x.double(), residual.double(), wide, eps, offset, cast)
    slack = (x.double().abs() + residual.double().abs()) * FP32
    rstd = torch.rsqrt(total.square().mean(-1, keepdim=True) + eps)
    scaled = slack * rstd if wide is None else slack * rstd * (wide + offset).abs()
    bound = norm_bound(truth, x.shape[-1], x.dtype, _roundings(weight, cast)) + 2 * scaled
    return max(_worst(out[0], truth, bound), _worst(out[1], total, rounding_bound(total, x.dtype) + slack))


def silu_excess(out: Tensor, gate: Tensor, up: Tensor) -> float:
    """The largest error over bound of out = silu(gate) * up."""
    truth = swiglu.reference(gate.double(), up.double())
    return _worst(out, truth, silu_bound(truth, gate, out.dtype))


def silu_gradients_excess(d_gate: Tensor, d_up: Tensor, dy: Tensor, gate: Tensor, up: Tensor) -> float:
    """The same of the gradients of gate and up, where dy is that of silu(gate) * up."""
    scale = dy.double() * up.double()
    truth_gate, truth_up = gradients(dy.double(), gate.double(), up.double())
    return max(
        _worst(d_gate, truth_gate, slope_bound(truth_gate, gate, scale, gate.dtype)),
        _worst(d_up, truth_up, silu_bound(truth_up, gate, gate.dtype)),
    )


def _roundings(weight: Tensor | None, cast: bool) -> int:
    return 2 if cast and weight is not None else 1
