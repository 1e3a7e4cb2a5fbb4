"""fused_add_rms_norm and its in-place form: the residual stream's addition and the norm after it, in one pass."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from pyptx_ops import dispatch
from pyptx_ops.dispatch import norm as kernels
from pyptx_ops.ops._checks import accumulator, bad_device, bad_dtype, bad_shape, check_same_shape, packed
from pyptx_ops.ops._memory import elements_meet, tensors_meet
from pyptx_ops.ops._register import register, register_inplace
from pyptx_ops.ops.rms_norm import check as check_norm
from pyptx_ops.ops.rms_norm import gradients, normalized

__all__ = ["fused_add_rms_norm", "fused_add_rms_norm_", "reference"]

_ARGS = "Tensor? weight, float eps, float weight_offset=0., bool cast_before_weight=True"


def check(op: str, x: Tensor, residual: Tensor, weight: Tensor | None, eps: float, weight_offset: float) -> None:
    """All but that the shapes agree, which fakes must assert and eager calls may compare."""
    check_norm(op, x, weight, eps, weight_offset)
    if residual.dtype is not x.dtype:
        bad_dtype(op, "residual", residual.dtype, f"{x.dtype} like x")
    if residual.device != x.device:
        bad_device(op, "residual", residual, x.device)


def reference(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None,
    eps: float,
    weight_offset: float = 0.0,
    cast_before_weight: bool = True,
) -> tuple[Tensor, Tensor]:
    """The op in plain torch, without checks: statistics come from the unrounded sum."""
    total = _sum(x, residual)
    return normalized(total, x.dtype, weight, eps, weight_offset, cast_before_weight), packed(total, x.dtype)


def _sum(x: Tensor, residual: Tensor) -> Tensor:
    acc = accumulator(x.dtype)
    return x.to(acc) + residual.to(acc)


def run(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None,
    eps: float,
    weight_offset: float = 0.0,
    cast_before_weight: bool = True,
) -> tuple[Tensor, Tensor]:
    check("fused_add_rms_norm", x, residual, weight, eps, weight_offset)
    if residual.shape != x.shape:
        bad_shape("fused_add_rms_norm", "residual", residual, f"{tuple(x.shape)} like x")
    if dispatch.runs_kernels(x) and kernels.takes(x):
        return kernels.fused_add_rms_norm(x, residual, weight, eps, weight_offset, cast_before_weight)
    return reference(x, residual, weight, eps, weight_offset, cast_before_weight)


def fake(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None,
    eps: float,
    weight_offset: float = 0.0,
    cast_before_weight: bool = True,
) -> tuple[Tensor, Tensor]:
    check("fused_add_rms_norm", x, residual, weight, eps, weight_offset)
    check_same_shape("fused_add_rms_norm", "residual", residual, "x", x)
    return x.new_empty(x.shape), x.new_empty(x.shape)


def save(
    ctx: Any,
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None,
    eps: float,
    weight_offset: float = 0.0,
    cast_before_weight: bool = True,
) -> None:
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(x, residual, weight)
    ctx.options = (eps, weight_offset, cast_before_weight)


def backward(ctx: Any, dy: Tensor | None, dsum: Tensor | None) -> tuple[Tensor | None, ...]:
    x, residual, weight = ctx.saved_tensors
    total, dweight = dsum, None
    if dy is not None:
        total, dweight = gradients(_sum(x, residual), dy, weight, ctx.needs_input_grad[2], *ctx.options)
        if dsum is not None:
            total = total + dsum
    if total is not None:
        total = total.to(x.dtype)
    needs_x, needs_residual = ctx.needs_input_grad[:2]
    return total if needs_x else None, total if needs_residual else None, dweight, None, None, None


_op = register(
    f"fused_add_rms_norm(Tensor x, Tensor residual, {_ARGS}) -> (Tensor y, Tensor residual_out)",
    run=run,
    fake=fake,
    save=save,
    backward=backward,
).call


def fused_add_rms_norm(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None = None,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    cast_before_weight: bool = True,
) -> tuple[Tensor, Tensor]:
    """`s = x + residual`, and the norm of `s` as in :func:`rms_norm`.

    The sum is fp32 (fp64 for fp64 x) and unrounded when its statistics are taken and when it is normalised; only the
    sum that is returned is rounded. Callers that normalise the rounded sum may differ by that rounding.

    Args:
        x: (..., H), H >= 1; bf16, fp16, fp32 or fp64, any strides. On CUDA, fp32 and fp64 take the reference path.
        residual: the shape, dtype and device of `x`, any strides.
        weight, eps, weight_offset, cast_before_weight: as in :func:`rms_norm`.

    Returns:
        (y, residual_out): the norm and the rounded sum, each with the shape and dtype of `x`, contiguous.

    Raises:
        TypeError: a dtype that is not taken, or dtypes that differ.
        ValueError: a shape, device, eps or offset that is not taken.
    """
    if weight_offset == 0.0 and cast_before_weight is True:  # defaults that are not passed cost nothing
        return _op(x, residual, weight, eps)
    return _op(x, residual, weight, eps, weight_offset, cast_before_weight)


def run_inplace(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None,
    eps: float,
    weight_offset: float = 0.0,
    cast_before_weight: bool = True,
) -> None:
    check("fused_add_rms_norm_", x, residual, weight, eps, weight_offset)
    if residual.shape != x.shape:
        bad_shape("fused_add_rms_norm_", "residual", residual, f"{tuple(x.shape)} like x")
    _check_overlap(x, residual, weight)
    if dispatch.runs_kernels(x) and kernels.takes(x):
        kernels.fused_add_rms_norm_(x, residual, weight, eps, weight_offset, cast_before_weight)
        return
    y, total = reference(x, residual, weight, eps, weight_offset, cast_before_weight)
    x.copy_(y)
    residual.copy_(total)


def _check_overlap(x: Tensor, residual: Tensor, weight: Tensor | None) -> None:
    """Refuses outputs that overwrite each other, themselves or the weight."""
    for name, tensor in (("x", x), ("residual", residual)):
        if elements_meet(tensor):
            raise ValueError(
                f"fused_add_rms_norm_: {name} has strides {tensor.stride()}, with which elements of shape "
                f"{tuple(tensor.shape)} may share memory; wanted a tensor that can be written"
            )
    for name, one, other_name, other in (
        ("residual", residual, "x", x), ("weight", weight, "x", x), ("weight", weight, "residual", residual),
    ):  # fmt: skip
        if one is not None and tensors_meet(one, other):
            raise ValueError(f"fused_add_rms_norm_: {name} shares memory with {other_name}, which is written")


def fake_inplace(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None,
    eps: float,
    weight_offset: float = 0.0,
    cast_before_weight: bool = True,
) -> None:
    check("fused_add_rms_norm_", x, residual, weight, eps, weight_offset)
    check_same_shape("fused_add_rms_norm_", "residual", residual, "x", x)


_inplace_op = register_inplace(
    f"fused_add_rms_norm_(Tensor(a!) x, Tensor(b!) residual, {_ARGS}) -> ()",
    run=run_inplace,
    fake=fake_inplace,
    mutated=2,
).call


def fused_add_rms_norm_(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None = None,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    cast_before_weight: bool = True,
) -> None:
    """:func:`fused_add_rms_norm` in place: `x` becomes the norm and `residual` the rounded sum. Returns nothing.

    For inference: it has no derivative.

    Args:
        x, residual, weight, eps, weight_offset, cast_before_weight: as in :func:`fused_add_rms_norm`; `x` and
            `residual` must not share memory.

    Raises:
        TypeError: a dtype that is not taken, or dtypes that differ.
        ValueError: a shape, device, eps or offset that is not taken, or memory that is written twice.
        RuntimeError: grad mode is on and an argument requires grad.
    """
    if weight_offset == 0.0 and cast_before_weight is True:  # defaults that are not passed cost nothing
        _inplace_op(x, residual, weight, eps)
    else:
        _inplace_op(x, residual, weight, eps, weight_offset, cast_before_weight)
