"""silu_and_mul, swiglu and their gradients: tensors as rows, a plan per kind of call, and the launch.

A kernel takes rows that are one stride apart, read in chunks of 16 bytes where everything is aligned and element by
element, at any stride, where it is not. Tensors whose rows need more than one stride are copied first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import launch
from ..kernels.configs import SwigluConfig
from ..kernels.hopper.tuning.swiglu import SwigluProblem, grid, select
from . import bound, route
from .rows import ALIGNMENT, ELEMENT_BYTES, merge_rows, reciprocal

__all__ = ["Plan", "silu_and_mul", "silu_and_mul_bwd", "swiglu", "swiglu_bwd"]

MAX_PLANS = 4096

_DTYPE_NAMES = {torch.bfloat16: "bf16", torch.float16: "f16"}


class Call(NamedTuple):
    """A call of an op, with its outputs made.

    shape: of what has one element to each result of an activation.
    tensors: all that the kernel takes at any stride, in the order of its parameters.
    packed: which of them hold gate and up, as halves or interleaved.
    out: the output of a forward pass, which is dense.
    outputs: what the op returns.
    """

    op: str
    args: tuple[object, ...]
    shape: torch.Size
    tensors: tuple[Tensor, ...]
    packed: tuple[int, ...] = ()
    interleaved: bool = False
    out: Tensor | None = None
    offs: Tensor | None = None
    outputs: tuple[Tensor, ...] = ()


class Plan(NamedTuple):
    """All of a call that does not change while shapes, strides, dtypes, alignment and the device stay the same.

    operands: (which tensor, bytes into it) of each pointer.
    """

    config: SwigluConfig
    kernel: launch.Kernel
    blocks: int
    operands: tuple[tuple[int, int], ...]
    tail: tuple[int, ...]


_plans: dict[tuple[Any, ...], Plan | None] = {}  # by kind of call; None where an input has to be copied first
_MISSING: Any = object()


def silu_and_mul(x: Tensor, interleaved: bool) -> Tensor:
    """silu(gate) · up of the parts of a checked CUDA tensor (..., 2 d) of bf16 or fp16; contiguous (..., d)."""
    *outer, both = x.shape
    out = x.new_empty((*outer, both // 2))
    _silu_and_mul(x, interleaved, out)
    return out


def silu_and_mul_bwd(dy: Tensor, x: Tensor, interleaved: bool) -> Tensor:
    """The gradient of x, contiguous."""
    dx = torch.empty_like(x, memory_format=torch.contiguous_format)
    _silu_and_mul_bwd(dy, x, interleaved, dx)
    return dx


def swiglu(gate: Tensor, up: Tensor, offs: Tensor | None) -> Tensor:
    """silu(gate) · up of checked CUDA tensors of bf16 or fp16, rows at and past offs[-1] zero; contiguous."""
    out = torch.empty_like(gate, memory_format=torch.contiguous_format)
    _swiglu(gate, up, offs, out)
    return out


def swiglu_bwd(dy: Tensor, gate: Tensor, up: Tensor, offs: Tensor | None) -> tuple[Tensor, Tensor]:
    """The gradients of gate and up, contiguous, rows at and past offs[-1] zero."""
    d_gate, d_up = (torch.empty_like(gate, memory_format=torch.contiguous_format) for _ in range(2))
    _swiglu_bwd(dy, gate, up, offs, d_gate, d_up)
    return d_gate, d_up


def _silu_and_mul(x: Tensor, interleaved: bool, out: Tensor) -> None:
    _run(Call("silu_and_mul", (x, interleaved), out.shape, (x,), (0,), interleaved, out, outputs=(out,)))


def _silu_and_mul_bwd(dy: Tensor, x: Tensor, interleaved: bool, dx: Tensor) -> None:
    args, tensors = (dy, x, interleaved), (x, dy, dx)
    _run(Call("silu_and_mul_bwd", args, dy.shape, tensors, (0, 2), interleaved, outputs=(dx,)))


def _swiglu(gate: Tensor, up: Tensor, offs: Tensor | None, out: Tensor) -> None:
    _run(Call("swiglu", (gate, up, offs), out.shape, (gate, up), out=out, offs=offs, outputs=(out,)))


def _swiglu_bwd(dy: Tensor, gate: Tensor, up: Tensor, offs: Tensor | None, d_gate: Tensor, d_up: Tensor) -> None:
    outputs = (d_gate, d_up)
    _run(Call("swiglu_bwd", (dy, gate, up, offs), dy.shape, (gate, up, dy, *outputs), offs=offs, outputs=outputs))


def _run(call: Call) -> None:
    if not call.shape.numel():
        return
    tensors, out, offs = call.tensors, call.out, call.offs
    device, launcher = tensors[0].get_device(), launch.current_launcher()
    addresses = [tensor.data_ptr() for tensor in (*tensors, *call.outputs)]
    aligned = not any(address % ALIGNMENT for address in addresses)
    strides = tuple(tensor.stride() for tensor in tensors)
    key = (call.op, call.shape, strides, tensors[0].dtype, call.interleaved, aligned, device, launcher)
    plan = _plans.get(key, _MISSING)
    if plan is _MISSING:
        if len(_plans) >= MAX_PLANS:
            _plans.clear()
        plan = _plans[key] = _plan(call, aligned, device, launcher)
    if plan is None:
        _run(call._replace(tensors=tuple(tensor.contiguous() for tensor in tensors)))
        return
    pointers = [(tensors[i], offset) for i, offset in plan.operands] + ([] if out is None else [(out, 0)])
    ends = (0, 0) if offs is None else (offs.contiguous(), offs.shape[0])
    values = (*pointers, *ends, *plan.tail)
    bound.launch(call.op, call.args, plan.kernel, device, (plan.blocks, 1, 1), values, call.outputs)


def _plan(call: Call, aligned: bool, device: int, launcher: launch.Launcher) -> Plan | None:
    columns, tensors = call.shape[-1], call.tensors
    rows = merge_rows(call.shape, [tensor.stride() for tensor in tensors], most=1)
    if rows is None:
        return None
    steps = [tensor.stride(-1) * ELEMENT_BYTES for tensor in tensors]
    aligned = aligned and rows.aligned and all(step == ELEMENT_BYTES for step in steps)
    dtype = _DTYPE_NAMES[tensors[0].dtype]
    config = select(SwigluProblem(columns, dtype, call.interleaved, aligned, backward=call.out is None))
    operands, strides = _operands(config, call, steps, [inner for _, inner in rows.strides])
    arch = route(device).arch
    assert arch is not None  # checked tensors on a device that runs kernels
    kernel = launcher.kernel(arch, config.name)
    per_row = columns // config.width
    tail = (rows.rows, per_row, reciprocal(per_row), *strides)
    return Plan(config, kernel, grid(rows.rows, columns, config), operands, tail)


def _operands(
    config: SwigluConfig, call: Call, steps: Sequence[int], pitches: Sequence[int]
) -> tuple[tuple[tuple[int, int], ...], list[int]]:
    """(which tensor, bytes into it) and the strides of each operand: a packed tensor is two unless it holds pairs."""
    operands: list[tuple[int, int]] = []
    strides: list[int] = []
    for i, (step, pitch) in enumerate(zip(steps, pitches)):
        starts = [0]
        if i in call.packed and config.layout != "pairs":
            starts.append(step if call.interleaved else call.shape[-1] * step)
            step *= 2 if call.interleaved else 1
        for start in starts:
            operands.append((i, start))
            strides += [pitch, step] if config.layout == "strided" else [pitch]
    return tuple(operands), strides
