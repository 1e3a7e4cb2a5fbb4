"""Matrix products with known answers: operands in every layout, and how far a result is from the truth.

Truth is fp64, computed in blocks of rows so that a large result needs no more than a few GB beside it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from pyptx_ops.ops.gemm import reference
from tests.tolerance import excess, product_bound

__all__ = ["grouped_excess", "offs_of", "operand", "product_excess"]

BLOCK_ELEMENTS = 1 << 27
DEVICE = "cuda"


def operand(
    rows: int, columns: int, layout: str = "N", dtype: torch.dtype = torch.bfloat16, device: str | None = None
) -> Tensor:
    """Normal numbers, (rows, columns); "T" where memory holds the transpose. On the GPU, if not told otherwise."""
    if layout == "T":
        return operand(columns, rows, "N", dtype, device).t()
    return torch.empty((rows, columns), dtype=dtype, device=device or DEVICE).normal_()


def offs_of(counts: Tensor) -> Tensor:
    """Cumulative group ends."""
    return counts.cumsum(0).to(DEVICE, torch.int32)


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


def _blocks(out: Tensor) -> Iterator[slice]:
    """Slices of rows that hold few enough elements; none where there are no elements."""
    if out.numel() == 0:
        return
    step = max(1, BLOCK_ELEMENTS // out.shape[1])
    for start in range(0, out.shape[0], step):
        yield slice(start, start + step)
