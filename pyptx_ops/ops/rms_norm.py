"""rms_norm: x / rms(x) * (weight + offset), with both roundings that are in use."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pyptx_ops import dispatch
from pyptx_ops.dispatch import norm as kernels
from pyptx_ops.ops._checks import DTYPES, accumulator, bad_device, bad_dtype, bad_shape, packed
from pyptx_ops.ops._register import register

__all__ = ["check", "gradients", "normalized", "reference", "rms_norm"]


def check(op: str, x: Tensor, weight: Tensor | None, eps: float, weight_offset: float) -> None:
    if x.dtype not in DTYPES:
        bad_dtype(op, "x", x.dtype, DTYPES)
    hidden = x.shape[-1:]
    if not hidden or hidden[0] == 0:
        bad_shape(op, "x", x, "(..., H) with H >= 1")
    if not eps >= 0.0:
        raise ValueError(f"{op}: eps is {eps}, wanted a number >= 0")
    if weight is not None:
        if weight.dtype not in DTYPES:
            bad_dtype(op, "weight", weight.dtype, DTYPES)
        if weight.shape != hidden:
            bad_shape(op, "weight", weight, f"(H,) with H = {hidden[0]} as in x")
        if weight.device != x.device:
            bad_device(op, "weight", weight, x.device)
    elif weight_offset != 0.0:
        raise ValueError(f"{op}: weight_offset is {weight_offset}, wanted 0 where there is no weight to add it to")


def normalized(
    values: Tensor, dtype: torch.dtype, weight: Tensor | None, eps: float, weight_offset: float, cast: bool
) -> Tensor:
    """The norm of rows held in the accumulator's dtype, rounded to `dtype` as the op does."""
    out = values * torch.rsqrt(values.square().mean(-1, keepdim=True) + eps)
    if weight is not None:
        out = (out.to(dtype) if cast else out) * (weight.to(values.dtype) + weight_offset)
    return packed(out, dtype)


def gradients(
    values: Tensor, dy: Tensor, weight: Tensor | None, needs_weight: bool, eps: float, weight_offset: float, cast: bool
) -> tuple[Tensor, Tensor | None]:
    """Gradients of `normalized` for `values`, in their dtype, and for the weight. Roundings have derivative 1."""
    rstd = torch.rsqrt(values.square().mean(-1, keepdim=True) + eps)
    unit = values * rstd
    d_unit = dy.to(values.dtype)
    d_weight = None
    if weight is not None:
        if needs_weight:
            scaled = unit.to(dy.dtype) if cast else unit
            d_weight = (d_unit * scaled).sum(tuple(range(dy.dim() - 1))) if dy.dim() > 1 else d_unit * scaled
            d_weight = d_weight.to(weight.dtype)
        d_unit = d_unit * (weight.to(values.dtype) + weight_offset)
    return rstd * (d_unit - unit * (d_unit * unit).mean(-1, keepdim=True)), d_weight


def reference(
    x: Tensor, weight: Tensor | None, eps: float, weight_offset: float = 0.0, cast_before_weight: bool = True
) -> Tensor:
    """The op in plain torch, without checks."""
    return normalized(x.to(accumulator(x.dtype)), x.dtype, weight, eps, weight_offset, cast_before_weight)


def run(
    x: Tensor, weight: Tensor | None, eps: float, weight_offset: float = 0.0, cast_before_weight: bool = True
) -> Tensor:
    check("rms_norm", x, weight, eps, weight_offset)
    if dispatch.runs_kernels(x) and kernels.takes(x):
        return kernels.rms_norm(x, weight, eps, weight_offset, cast_before_weight)
    return reference(x, weight, eps, weight_offset, cast_before_weight)


def fake(
    x: Tensor, weight: Tensor | None, eps: float, weight_offset: float = 0.0, cast_before_weight: bool = True
) -> Tensor:
    check("rms_norm", x, weight, eps, weight_offset)
    return x.new_empty(x.shape)


def save(
    ctx: Any, x: Tensor, weight: Tensor | None, eps: float, weight_offset: float = 0.0, cast_before_weight: bool = True
) -> None:
    ctx.save_for_backward(x, weight)
    ctx.options = (eps, weight_offset, cast_before_weight)


def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    x, weight = ctx.saved_tensors
    values = x.to(accumulator(x.dtype))
    dx, dweight = gradients(values, dy, weight, ctx.needs_input_grad[1], *ctx.options)
    return dx.to(x.dtype) if ctx.needs_input_grad[0] else None, dweight, None, None, None


_op = register(
    "rms_norm(Tensor x, Tensor? weight, float eps, float weight_offset=0., bool cast_before_weight=True) -> Tensor",
    run=run,
    fake=fake,
    save=save,
    backward=backward,
).call


def rms_norm(
    x: Tensor,
    weight: Tensor | None = None,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    cast_before_weight: bool = True,
) -> Tensor:
    """Root mean square norm over the last dimension: `n * (weight + weight_offset)`, `n = x / sqrt(mean(x**2) + eps)`.

    Statistics, `n` and the factor are fp32 (fp64 for fp64 x); the result has the dtype of `x` whatever the weight's.

    | cast_before_weight | roundings | as in |
    |---|---|---|
    | True (default) | `n` to the dtype of x, then the product | Hugging Face Llama, Mixtral, Qwen; vLLM |
    | False | the product only | Transformer Engine; with weight_offset=1, Gemma |

    The offset is added to the weight in fp32 in both. Without a weight `n` is rounded once and returned.

    Args:
        x: (..., H), H >= 1; bf16, fp16, fp32 or fp64, any strides. On CUDA, fp32 and fp64 take the reference path.
        weight: (H,), any of these dtypes, on the device of `x`.
        eps: added to the mean square, >= 0.
        weight_offset: added to the weight, 0 where there is none.
        cast_before_weight: which rounding, see above.

    Returns:
        The shape and dtype of `x`, contiguous.

    Raises:
        TypeError: a dtype that is not taken.
        ValueError: a shape, device, eps or offset that is not taken.
    """
    if weight_offset == 0.0 and cast_before_weight is True:  # defaults that are not passed cost nothing
        return _op(x, weight, eps)
    return _op(x, weight, eps, weight_offset, cast_before_weight)
