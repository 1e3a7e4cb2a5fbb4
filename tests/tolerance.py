"""Error bounds that follow from the arithmetic of an op, and the comparison that applies them.

Truth is fp64. An op may be off by the rounding of its result (`unit(dtype)` of the value) and by what its fp32
arithmetic loses, which is bounded per op below.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

FP32 = 2.0**-24  # unit roundoff


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
    accumulated = magnitude * (2 * FP32 * min(k + 1.0, 8 * math.sqrt(k + 1.0)))
    return accumulated + rounding_bound(truth.abs() + accumulated, dtype)


def norm_bound(truth: Tensor, hidden: int, dtype: torch.dtype, roundings: int = 1) -> Tensor:
    """Of a norm over `hidden` elements: a mean of fp32 squares, an approximate rsqrt, and 1 or 2 roundings."""
    relative = FP32 * (16 + min(hidden, 8 * math.sqrt(hidden)))
    return truth.abs() * relative + rounding_bound(truth * (1 + relative), dtype, roundings)


def silu_bound(truth: Tensor, gate: Tensor, dtype: torch.dtype) -> Tensor:
    """Of silu(gate) * up: the exponential's error grows with its argument; results under fp32's range may be zero."""
    relative = FP32 * (16 + 4 * gate.double().abs())
    flushed = torch.finfo(torch.float32).smallest_normal * 128
    return truth.abs() * relative + rounding_bound(truth * (1 + relative), dtype) + flushed


def excess(actual: Tensor, truth: Tensor, bound: Tensor | float) -> Tensor:
    """Error over bound of every element: at most 1 where it is within. Infinite for a NaN or infinity in one only."""
    error = (actual.double() - truth.double()).abs()
    same = (actual.double() == truth.double()) | (actual.isnan() & truth.isnan())
    ratio = torch.where(same, 0.0, error / torch.as_tensor(bound, device=error.device).double().clamp_min(1e-300))
    return ratio.nan_to_num(nan=math.inf)


def assert_within(actual: Tensor, truth: Tensor, bound: Tensor | float, what: str = "result") -> None:
    """Every element of `actual` is finite and within `bound` of `truth` (an infinity or NaN must be one in both)."""
    assert actual.shape == truth.shape, f"{what}: shape {tuple(actual.shape)}, wanted {tuple(truth.shape)}"
    if actual.numel() == 0:
        return
    ratio = excess(actual, truth, bound)
    worst = int(ratio.argmax())
    index = tuple(int(i) for i in torch.unravel_index(torch.tensor(worst), actual.shape))
    assert ratio.flatten()[worst] <= 1, (
        f"{what}: {int((ratio > 1).sum())} of {actual.numel()} elements out of bound; worst at {index}: "
        f"{actual[index].item()!r}, wanted {truth[index].item()!r}, {ratio[index].item():.3g} times the bound"
    )
