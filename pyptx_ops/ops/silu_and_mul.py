"""silu_and_mul: silu(gate) * up of one tensor that holds both, as halves or as interleaved pairs."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from pyptx_ops import dispatch
from pyptx_ops.dispatch import swiglu as kernels
from pyptx_ops.ops import _swiglu, swiglu
from pyptx_ops.ops._register import register
from pyptx_ops.ops.silu_and_mul_bwd import silu_and_mul_bwd

__all__ = ["reference", "silu_and_mul"]


def reference(x: Tensor, interleaved: bool = False) -> Tensor:
    """The op in plain torch, without checks."""
    return swiglu.reference(*_swiglu.split(x, interleaved))


def run(x: Tensor, interleaved: bool = False) -> Tensor:
    _swiglu.check_packed("silu_and_mul", x)
    if dispatch.runs_kernels(x):
        return kernels.silu_and_mul(x, interleaved)
    return reference(x, interleaved)


def fake(x: Tensor, interleaved: bool = False) -> Tensor:
    _swiglu.check_packed("silu_and_mul", x)
    return x.new_empty((*x.shape[:-1], x.shape[-1] // 2))


def save(ctx: Any, x: Tensor, interleaved: bool = False) -> None:
    ctx.save_for_backward(x)
    ctx.interleaved = interleaved


def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    (x,) = ctx.saved_tensors
    return silu_and_mul_bwd(dy, x, ctx.interleaved), None


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
