"""silu_and_mul: silu(gate) * up of one tensor that holds both, as halves or as interleaved pairs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pyptx_ops import dispatch
from pyptx_ops.dispatch import swiglu as kernels
from pyptx_ops.ops import swiglu as _swiglu
from pyptx_ops.ops._checks import DTYPES, bad_dtype, bad_shape
from pyptx_ops.ops._register import register

__all__ = ["reference", "silu_and_mul"]


def check(x: Tensor) -> None:
    if x.dtype not in DTYPES:
        bad_dtype("silu_and_mul", "x", x.dtype, DTYPES)
    if x.dim() == 0 or x.shape[-1] % 2:
        bad_shape("silu_and_mul", "x", x, "(..., 2 d)")


def split(x: Tensor, interleaved: bool) -> tuple[Tensor, Tensor]:
    """Views of the gate and of the up part."""
    if interleaved:
        return x[..., ::2], x[..., 1::2]
    half = x.shape[-1] // 2
    return x.narrow(-1, 0, half), x.narrow(-1, half, half)


def reference(x: Tensor, interleaved: bool = False) -> Tensor:
    """The op in plain torch, without checks."""
    return _swiglu.reference(*split(x, interleaved))


def run(x: Tensor, interleaved: bool = False) -> Tensor:
    check(x)
    if dispatch.runs_kernels(x):
        return kernels.silu_and_mul(x, interleaved)
    return reference(x, interleaved)


def fake(x: Tensor, interleaved: bool = False) -> Tensor:
    check(x)
    return x.new_empty((*x.shape[:-1], x.shape[-1] // 2))


def save(ctx: Any, x: Tensor, interleaved: bool = False) -> None:
    ctx.save_for_backward(x)
    ctx.interleaved = interleaved


def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    (x,) = ctx.saved_tensors
    parts = _swiglu.gradients(*split(x, ctx.interleaved), dy)
    return torch.stack(parts, -1).flatten(-2) if ctx.interleaved else torch.cat(parts, -1), None


_op = register(
    "silu_and_mul(Tensor x, bool interleaved=False) -> Tensor", run=run, fake=fake, save=save, backward=backward
).call


def silu_and_mul(x: Tensor, interleaved: bool = False) -> Tensor:
    """`silu(gate) * up` of one tensor that holds both; fp32 inside (fp64 for fp64), rounded once.

    Args:
        x: (..., 2 d); bf16, fp16, fp32 or fp64, any strides. On CUDA, fp32 and fp64 take the reference path.
        interleaved: False: the gate is the first half of the last dimension, `up` the second (Hugging Face
            `gate_up_proj`, vLLM `w13`). True: they alternate, gate first (torchtitan's fused `w13`).

    Returns:
        (..., d), the dtype of `x`, contiguous.

    Raises:
        TypeError: a dtype that is not taken.
        ValueError: a last dimension that is odd, or none.
    """
    return _op(x, interleaved)
