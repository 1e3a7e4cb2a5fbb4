"""swiglu_bwd: the gradients of swiglu's gate and up."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from pyptx_ops import dispatch
from pyptx_ops.dispatch import swiglu as kernels
from pyptx_ops.ops import _swiglu
from pyptx_ops.ops._checks import bad_shape, check_offs_values, check_same_shape
from pyptx_ops.ops._register import register

__all__ = ["swiglu_bwd"]


def check(dy: Tensor, gate: Tensor, up: Tensor, offs: Tensor | None) -> None:
    """All but that the shapes agree."""
    _swiglu.check_parts("swiglu_bwd", gate, up, offs)
    _swiglu.check_dy("swiglu_bwd", dy, "gate", gate)


def run(dy: Tensor, gate: Tensor, up: Tensor, offs: Tensor | None = None) -> tuple[Tensor, Tensor]:
    check(dy, gate, up, offs)
    for name, tensor in (("up", up), ("dy", dy)):
        if tensor.shape != gate.shape:
            bad_shape("swiglu_bwd", name, tensor, f"{tuple(gate.shape)} like gate")
    if dispatch.runs_kernels(gate):
        return kernels.swiglu_bwd(dy, gate, up, offs)
    if offs is not None and offs.is_cpu:
        check_offs_values("swiglu_bwd", offs, gate.shape[0])
    return _swiglu.gradients(dy, gate, up, offs)


def fake(dy: Tensor, gate: Tensor, up: Tensor, offs: Tensor | None = None) -> tuple[Tensor, Tensor]:
    check(dy, gate, up, offs)
    check_same_shape("swiglu_bwd", "up", up, "gate", gate)
    check_same_shape("swiglu_bwd", "dy", dy, "gate", gate)
    return gate.new_empty(gate.shape), gate.new_empty(gate.shape)


def save(ctx: Any, dy: Tensor, gate: Tensor, up: Tensor, offs: Tensor | None = None) -> None:
    ctx.save_for_backward(dy, gate, up, offs)


def backward(ctx: Any, dd_gate: Tensor, dd_up: Tensor) -> tuple[Tensor | None, ...]:
    dy, gate, up, offs = ctx.saved_tensors
    return (*_swiglu.second_gradients(dd_gate, dd_up, dy, gate, up, offs), None)


swiglu_bwd = register(
    "swiglu_bwd(Tensor dy, Tensor gate, Tensor up, Tensor? offs=None) -> (Tensor d_gate, Tensor d_up)",
    run=run,
    fake=fake,
    save=save,
    backward=backward,
).call
"""The gradients of `gate` and `up`, contiguous, from `dy`, that of the result, of their shape and dtype at any strides;
fp32 inside (fp64 for fp64), rounded once. Rows at and past `offs[-1]` are zero, and nothing is read of theirs."""
