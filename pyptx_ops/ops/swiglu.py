"""swiglu: silu(gate) * up of two tensors, with padding rows left out."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor

from pyptx_ops import dispatch
from pyptx_ops.dispatch import swiglu as kernels
from pyptx_ops.ops import _swiglu
from pyptx_ops.ops._checks import accumulator, bad_shape, check_offs_values, check_same_shape, packed
from pyptx_ops.ops._register import register
from pyptx_ops.ops.swiglu_bwd import swiglu_bwd

__all__ = ["reference", "swiglu"]


def reference(gate: Tensor, up: Tensor, offs: Tensor | None = None) -> Tensor:
    """The op in plain torch, without checks."""
    acc = accumulator(gate.dtype)
    out = F.silu(gate.to(acc)) * up.to(acc)
    return packed(out if offs is None else out.where(_swiglu.used_rows(out, offs), 0), gate.dtype)


def run(gate: Tensor, up: Tensor, offs: Tensor | None = None) -> Tensor:
    _swiglu.check_parts("swiglu", gate, up, offs)
    if up.shape != gate.shape:
        bad_shape("swiglu", "up", up, f"{tuple(gate.shape)} like gate")
    if dispatch.runs_kernels(gate):
        return kernels.swiglu(gate, up, offs)
    if offs is not None and offs.is_cpu:
        check_offs_values("swiglu", offs, gate.shape[0])
    return reference(gate, up, offs)


def fake(gate: Tensor, up: Tensor, offs: Tensor | None = None) -> Tensor:
    _swiglu.check_parts("swiglu", gate, up, offs)
    check_same_shape("swiglu", "up", up, "gate", gate)
    return gate.new_empty(gate.shape)


def save(ctx: Any, gate: Tensor, up: Tensor, offs: Tensor | None = None) -> None:
    ctx.save_for_backward(gate, up, offs)


def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    gate, up, offs = ctx.saved_tensors
    return (*swiglu_bwd(dy, gate, up, offs), None)


_op = register(
    "swiglu(Tensor gate, Tensor up, Tensor? offs=None) -> Tensor", run=run, fake=fake, save=save, backward=backward
).call


def swiglu(gate: Tensor, up: Tensor, offs: Tensor | None = None) -> Tensor:
    """`silu(gate) * up`; fp32 inside (fp64 for fp64), rounded once.

    Args:
        gate: (..., d); bf16, fp16, fp32 or fp64, any strides: the halves of a fused projection cost no copy. On CUDA,
            fp32 and fp64 take the reference path.
        up: the shape, dtype and device of `gate`, any strides.
        offs: (G,) int32 on the device of `gate`, cumulative group ends as in :func:`grouped_gemm`; `gate` is then
            (rows, d). Rows at and past `offs[-1]` are padding: zero in the result and in both gradients.

    Returns:
        The shape and dtype of `gate`, contiguous.

    Raises:
        TypeError: a dtype that is not taken, or dtypes that differ.
        ValueError: shapes or devices that do not match; on a CPU also an offs that is negative, decreasing or past
            the last row.
    """
    return _op(gate, up, offs)
