"""Row-wise ops with known answers: how far a result is from the fp64 truth, in units of its error bound."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pyptx_ops.ops import fused_add_rms_norm as fused
from pyptx_ops.ops import rms_norm as norm
from pyptx_ops.ops import swiglu
from tests.tolerance import FP32, excess, norm_bound, rounding_bound, silu_bound

__all__ = ["fused_excess", "norm_excess", "silu_excess"]


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


def _roundings(weight: Tensor | None, cast: bool) -> int:
    return 2 if cast and weight is not None else 1
