"""silu_and_mul_bwd: the gradient of silu_and_mul's input."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from pyptx_ops import dispatch
from pyptx_ops.dispatch import swiglu as kernels
from pyptx_ops.ops import _swiglu
from pyptx_ops.ops._checks import bad_shape, check_same_shape
from pyptx_ops.ops._register import register

__all__ = ["silu_and_mul_bwd"]


def check(dy: Tensor, x: Tensor) -> None:
    """All but that the shapes agree."""
    _swiglu.check_packed("silu_and_mul_bwd", x)
    _swiglu.check_dy("silu_and_mul_bwd", dy, "x", x)


def run(dy: Tensor, x: Tensor, interleaved: bool = False) -> Tensor:
    check(dy, x)
    gate, up = _swiglu.split(x, interleaved)
    if dy.shape != gate.shape:
        bad_shape("silu_and_mul_bwd", "dy", dy, f"{tuple(gate.shape)} like each half of x")
    if dispatch.runs_kernels(x):
        return kernels.silu_and_mul_bwd(dy, x, interleaved)
    return _swiglu.join(_swiglu.gradients(dy, gate, up), interleaved)


def fake(dy: Tensor, x: Tensor, interleaved: bool = False) -> Tensor:
    check(dy, x)
    check_same_shape("silu_and_mul_bwd", "dy", dy, "each half of x", _swiglu.split(x, interleaved)[0])
    return x.new_empty(x.shape)


def save(ctx: Any, dy: Tensor, x: Tensor, interleaved: bool = False) -> None:
    ctx.save_for_backward(dy, x)
    ctx.interleaved = interleaved


def backward(ctx: Any, ddx: Tensor) -> tuple[Tensor | None, ...]:
    dy, x = ctx.saved_tensors
    parts = (*_swiglu.split(ddx, ctx.interleaved), dy, *_swiglu.split(x, ctx.interleaved))
    d_dy, *d_parts = _swiglu.second_gradients(*parts)
    return d_dy, _swiglu.join(d_parts, ctx.interleaved), None


silu_and_mul_bwd = register(
    "silu_and_mul_bwd(Tensor dy, Tensor x, bool interleaved=False) -> Tensor",
    run=run,
    fake=fake,
    save=save,
    backward=backward,
).call
"""The gradient of `x`, contiguous, from `dy` (..., d), that of the result, of its dtype at any strides; fp32 inside
(fp64 for fp64), rounded once."""
