"""silu_and_mul and swiglu: tensors as rows, a plan per kind of call, and the launch.

A kernel takes rows that are one stride apart, read in chunks of 16 bytes where everything is aligned and element by
element, at any stride, where it is not. Inputs whose rows need more than one stride are copied first.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import launch
from ..kernels.configs import SwigluConfig
from ..kernels.hopper.tuning.swiglu import SwigluProblem, grid, select
from . import bound, route
from .rows import ALIGNMENT, ELEMENT_BYTES, merge_rows, reciprocal

__all__ = ["Plan", "silu_and_mul", "swiglu"]

MAX_PLANS = 4096

_DTYPE_NAMES = {torch.bfloat16: "bf16", torch.float16: "f16"}


class Plan(NamedTuple):
    """All of a call that does not change while shapes, strides, dtypes, alignment and the device stay the same.

    up_offset: bytes from the gate to the up part, of an input that holds both.
    """

    config: SwigluConfig
    kernel: launch.Kernel
    blocks: int
    up_offset: int
    tail: tuple[int, ...]


_plans: dict[tuple[Any, ...], Plan | None] = {}  # by kind of call; None where an input has to be copied first
_MISSING: Any = object()


def silu_and_mul(x: Tensor, interleaved: bool) -> Tensor:
    """silu(gate) · up of the parts of a checked CUDA tensor (..., 2 d) of bf16 or fp16; contiguous (..., d)."""
    *outer, both = x.shape
    out = x.new_empty((*outer, both // 2))
    if out.numel():
        _run_packed(x, interleaved, out)
    return out


def swiglu(gate: Tensor, up: Tensor, offs: Tensor | None) -> Tensor:
    """silu(gate) · up of checked CUDA tensors of bf16 or fp16, rows at and past offs[-1] zero; contiguous."""
    out = torch.empty_like(gate, memory_format=torch.contiguous_format)
    if out.numel():
        _run(gate, up, out, offs)
    return out


def _run_packed(x: Tensor, interleaved: bool, out: Tensor) -> None:
    device, launcher = x.get_device(), launch.current_launcher()
    aligned = (x.data_ptr() | out.data_ptr()) % ALIGNMENT == 0
    key = (x.shape, x.stride(), x.dtype, interleaved, aligned, device, launcher)
    plan = _plans.get(key, _MISSING)
    if plan is _MISSING:
        plan = _remember(key, _plan_packed(x, interleaved, aligned, device, launcher))
    if plan is None:
        _run_packed(x.contiguous(), interleaved, out)
        return
    inputs = (x,) if plan.config.layout == "pairs" else (x, (x, plan.up_offset))
    values = (*inputs, out, 0, 0, *plan.tail)
    bound.launch("silu_and_mul", (x, interleaved), plan.kernel, device, (plan.blocks, 1, 1), values, (out,))


def _run(gate: Tensor, up: Tensor, out: Tensor, offs: Tensor | None) -> None:
    device, launcher = gate.get_device(), launch.current_launcher()
    aligned = (gate.data_ptr() | up.data_ptr() | out.data_ptr()) % ALIGNMENT == 0
    key = (gate.shape, gate.stride(), up.stride(), gate.dtype, aligned, device, launcher)
    plan = _plans.get(key, _MISSING)
    if plan is _MISSING:
        plan = _remember(key, _plan_separate(gate, up, aligned, device, launcher))
    if plan is None:
        _run(gate.contiguous(), up.contiguous(), out, offs)
        return
    ends = (0, 0) if offs is None else (offs.contiguous(), offs.shape[0])
    values = (gate, up, out, *ends, *plan.tail)
    bound.launch("swiglu", (gate, up, offs), plan.kernel, device, (plan.blocks, 1, 1), values, (out,))


def _remember(key: tuple[Any, ...], plan: Plan | None) -> Plan | None:
    if len(_plans) >= MAX_PLANS:
        _plans.clear()
    _plans[key] = plan
    return plan


def _plan_packed(x: Tensor, interleaved: bool, aligned: bool, device: int, launcher: launch.Launcher) -> Plan | None:
    columns, step = x.shape[-1] // 2, x.stride(-1) * ELEMENT_BYTES
    rows = merge_rows(x.shape, [x.stride()], most=1)
    if rows is None:
        return None
    pitches = [rows.strides[0][1]] * 2
    up_offset = step if interleaved else columns * step
    steps = [2 * step if interleaved else step] * 2
    aligned = aligned and rows.aligned and step == ELEMENT_BYTES
    problem = SwigluProblem(columns, _DTYPE_NAMES[x.dtype], interleaved, aligned)
    return _make_plan(problem, rows.rows, pitches, steps, up_offset, device, launcher)


def _plan_separate(gate: Tensor, up: Tensor, aligned: bool, device: int, launcher: launch.Launcher) -> Plan | None:
    if gate.dim() == 0:
        gate, up = gate.unsqueeze(0), up.unsqueeze(0)
    rows = merge_rows(gate.shape, [gate.stride(), up.stride()], most=1)
    if rows is None:
        return None
    pitches = [inner for _, inner in rows.strides]
    steps = [tensor.stride(-1) * ELEMENT_BYTES for tensor in (gate, up)]
    aligned = aligned and rows.aligned and steps == [ELEMENT_BYTES] * 2
    problem = SwigluProblem(gate.shape[-1], _DTYPE_NAMES[gate.dtype], False, aligned)
    return _make_plan(problem, rows.rows, pitches, steps, 0, device, launcher)


def _make_plan(
    problem: SwigluProblem, rows: int, pitches: list[int], steps: list[int], up_offset: int,
    device: int, launcher: launch.Launcher,
) -> Plan:  # fmt: skip
    config = select(problem)
    arch = route(device).arch
    assert arch is not None  # checked tensors on a device that runs kernels
    kernel = launcher.kernel(arch, config.name)
    per_row = problem.columns // config.width
    tail: tuple[int, ...] = (rows, per_row, reciprocal(per_row))
    if config.layout == "pairs":
        tail += (pitches[0],)
    elif config.layout == "rows":
        tail += tuple(pitches)
    else:
        tail += (pitches[0], steps[0], pitches[1], steps[1])
    return Plan(config, kernel, grid(rows, problem.columns, config), up_offset, tail)
