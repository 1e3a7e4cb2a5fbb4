"""rms_norm and fused_add_rms_norm: tensors as rows, a plan per kind of call, and the launch.

A kernel takes rows that are contiguous within and two strides between them: any 2D tensor, heads sliced out of a fused
projection. What is strided within its rows, or needs more than two strides, is copied first, and so is a weight that is
neither fp32 nor of the dtype of x, or strided. Rows at odd addresses take a kernel of single elements.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import launch
from ..kernels.configs import RmsNormConfig
from ..kernels.hopper.tuning.norm import NormProblem, grid, select
from . import bound, route
from .rows import ALIGNMENT, Rows, merge_rows, reciprocal

__all__ = ["Plan", "fused_add_rms_norm", "fused_add_rms_norm_", "plan_of", "rms_norm", "takes"]

MAX_PLANS = 4096
MOST = 2**31 - 1  # elements of a row: kernels count them in 32 bits
F32_MAX = 2.0**128 - 2.0**104

_DTYPE_NAMES = {torch.bfloat16: "bf16", torch.float16: "f16"}


class Plan(NamedTuple):
    """All of a call that does not change while shapes, strides, dtypes, alignment and the device stay the same."""

    config: RmsNormConfig
    kernel: launch.Kernel
    grid: tuple[int, int]
    tail: tuple[int | float, ...]


_plans: dict[tuple[Any, ...], Plan | None] = {}


def takes(x: Tensor) -> bool:
    """Whether kernels count so many elements in a row; longer ones take the reference path."""
    return x.shape[-1] <= MOST


def rms_norm(x: Tensor, weight: Tensor | None, eps: float, weight_offset: float, cast_before_weight: bool) -> Tensor:
    """The norm of the rows of a checked CUDA tensor of bf16 or fp16; contiguous."""
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    if y.numel():
        _run(x, y, None, None, weight, eps, weight_offset, cast_before_weight)
    return y


def fused_add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor | None, eps: float, weight_offset: float, cast_before_weight: bool
) -> tuple[Tensor, Tensor]:
    """(the norm of x + residual, the rounded sum) of checked CUDA tensors of bf16 or fp16; both contiguous."""
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    total = torch.empty_like(y)
    if y.numel():
        _run(x, y, residual, total, weight, eps, weight_offset, cast_before_weight)
    return y, total


def fused_add_rms_norm_(
    x: Tensor, residual: Tensor, weight: Tensor | None, eps: float, weight_offset: float, cast_before_weight: bool
) -> None:
    """x becomes the norm of x + residual, and residual the rounded sum."""
    if x.numel():
        _run(x, x, residual, residual, weight, eps, weight_offset, cast_before_weight)


def plan_of(x: Tensor, residual: Tensor | None, weight: Tensor | None, *, aligned: bool, in_place: bool) -> Plan | None:
    """The plan of a call, made once per kind of call; None where x or the residual has to be copied first.

    aligned: whether every operand starts at a multiple of 16 bytes.
    """
    device, launcher = x.get_device(), launch.current_launcher()
    key = (
        x.shape, x.stride(), x.dtype, None if residual is None else residual.stride(),
        None if weight is None else weight.dtype, aligned, in_place, device, launcher,
    )  # fmt: skip
    try:
        return _plans[key]
    except KeyError:
        if len(_plans) >= MAX_PLANS:
            _plans.clear()
        plan = _plans[key] = _make_plan(x, residual, weight, aligned, in_place, device, launcher)
        return plan


def _run(
    x: Tensor, y: Tensor, residual: Tensor | None, total: Tensor | None, weight: Tensor | None,
    eps: float, weight_offset: float, cast_before_weight: bool,
) -> None:  # fmt: skip
    """Launch on non-empty operands. y and total are contiguous, or x and residual themselves."""
    if weight is not None:
        weight = _plain_weight(weight, x.dtype)
    operands = (x, y, weight) if residual is None else (x, y, residual, total, weight)
    aligned = not any(operand.data_ptr() % ALIGNMENT for operand in operands if operand is not None)
    plan = plan_of(x, residual, weight, aligned=aligned, in_place=x is y)
    if plan is None:
        _run_on_copies(x, y, residual, total, weight, eps, weight_offset, cast_before_weight)
        return
    addresses = [0 if operand is None else operand for operand in operands]
    values = (*addresses, _narrow(eps), _narrow(weight_offset), cast_before_weight, *plan.tail)
    outputs: tuple[Tensor, ...]
    if total is None:
        op, outputs = "rms_norm", (y,)
    else:
        op, outputs = ("fused_add_rms_norm_", ()) if x is y else ("fused_add_rms_norm", (y, total))
    inputs = (x, weight) if residual is None else (x, residual, weight)
    args = (*inputs, eps, weight_offset, cast_before_weight)
    bound.launch(op, args, plan.kernel, x.get_device(), (*plan.grid, 1), values, outputs)


def _run_on_copies(
    x: Tensor, y: Tensor, residual: Tensor | None, total: Tensor | None, weight: Tensor | None, *options: Any
) -> None:
    """For inputs that the kernels do not take as they lie."""
    x_copy = x.contiguous() if x is not y else x.clone(memory_format=torch.contiguous_format)
    if residual is None or total is None:
        _run(x_copy, y, None, None, weight, *options)
        return
    residual_copy = residual.clone(memory_format=torch.contiguous_format) if x is y else residual.contiguous()
    if x is not y:
        _run(x_copy, y, residual_copy, total, weight, *options)
        return
    _run(x_copy, x_copy, residual_copy, residual_copy, weight, *options)
    x.copy_(x_copy)
    residual.copy_(residual_copy)


def _narrow(value: float) -> float:
    """What adding it to fp32 adds: past the largest, infinity."""
    return math.copysign(math.inf, value) if abs(value) > F32_MAX else value


def _plain_weight(weight: Tensor, dtype: torch.dtype) -> Tensor:
    if weight.dtype is not dtype and weight.dtype is not torch.float32:
        weight = weight.float()
    return weight if weight.is_contiguous() else weight.contiguous()


def _make_plan(
    x: Tensor, residual: Tensor | None, weight: Tensor | None, aligned: bool, in_place: bool,
    device: int, launcher: launch.Launcher,
) -> Plan | None:  # fmt: skip
    shape, inputs = x.shape, [x] if residual is None else [x, residual]
    hidden = shape[-1]
    if hidden > 1 and any(tensor.stride(-1) != 1 for tensor in inputs):
        return None
    dense = _dense_strides(shape)
    layouts = [layout for tensor in inputs for layout in (tensor.stride(), tensor.stride() if in_place else dense)]
    rows = merge_rows(shape, layouts)
    if rows is None:
        return None
    config = select(NormProblem(hidden, _DTYPE_NAMES[x.dtype], residual is not None, aligned and rows.aligned))
    arch = route(device).arch
    assert arch is not None  # checked tensors on a device that runs kernels
    kernel = launcher.kernel(arch, config.name)
    weight_kind = 0 if weight is None else 2 if weight.dtype is torch.float32 else 1
    return Plan(config, kernel, grid(rows.rows, config), (weight_kind, *_sizes(rows, hidden, config)))


def _dense_strides(shape: torch.Size) -> list[int]:
    strides = [1]
    for size in reversed(shape[1:]):
        strides.append(strides[-1] * size)
    return strides[::-1]


def _sizes(rows: Rows, hidden: int, config: RmsNormConfig) -> tuple[int | float, ...]:
    """The kernel's last parameters."""
    strides = [stride for pair in rows.strides for stride in pair]
    return (rows.rows, rows.per_outer, reciprocal(rows.per_outer), hidden // config.width, 1.0 / hidden, *strides)
