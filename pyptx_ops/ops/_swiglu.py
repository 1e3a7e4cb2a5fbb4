"""What the SwiGLU ops share: checks, and the activation and its derivatives in plain torch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..dispatch.gemm import MOST
from ._checks import DTYPES, accumulator, bad_device, bad_dtype, bad_shape, check_offs, packed

__all__ = [
    "check_counted",
    "check_dy",
    "check_packed",
    "check_parts",
    "gradients",
    "join",
    "second_gradients",
    "split",
    "used_rows",
]


def check_parts(op: str, gate: Tensor, up: Tensor, offs: Tensor | None) -> None:
    """All but that the shapes agree, which fakes must assert and eager calls may compare."""
    dtype = gate.dtype
    if dtype not in DTYPES:
        bad_dtype(op, "gate", dtype, DTYPES)
    if gate.dim() == 0:
        bad_shape(op, "gate", gate, "(..., d)")
    if up.dtype is not dtype:
        bad_dtype(op, "up", up.dtype, f"{dtype} like gate")
    if up.device != gate.device:
        bad_device(op, "up", up, gate.device)
    if offs is not None:
        check_offs(op, offs, gate.device)
        if gate.dim() != 2:
            bad_shape(op, "gate", gate, "(rows, d) where offs is given")


def check_packed(op: str, x: Tensor) -> None:
    if x.dtype not in DTYPES:
        bad_dtype(op, "x", x.dtype, DTYPES)
    if x.dim() == 0 or x.shape[-1] % 2:
        bad_shape(op, "x", x, "(..., 2 d)")


def check_counted(op: str, a: Tensor, w13: Tensor) -> None:
    """What kernels of products count in 32 bits: all rows of a, and each dimension."""
    for name, tensor, sizes in (("a", a, (a.shape[:-1].numel(), a.shape[-1])), ("w13", w13, w13.shape)):
        if max(sizes) > MOST:
            bad_shape(op, name, tensor, f"sizes of at most {MOST}, and as many rows")


def check_dy(op: str, dy: Tensor, name: str, of: Tensor) -> None:
    """That the gradient of the result is of its dtype and on its device. name: of the argument `of`."""
    if dy.dtype is not of.dtype:
        bad_dtype(op, "dy", dy.dtype, f"{of.dtype} like {name}")
    if dy.device != of.device:
        bad_device(op, "dy", dy, of.device)


def split(x: Tensor, interleaved: bool) -> tuple[Tensor, Tensor]:
    """Views of the gate and of the up part."""
    if interleaved:
        return x[..., ::2], x[..., 1::2]
    half = x.shape[-1] // 2
    return x.narrow(-1, 0, half), x.narrow(-1, half, half)


def join(parts: Sequence[Tensor], interleaved: bool) -> Tensor:
    """The tensor whose gate and up part these are."""
    return torch.stack(tuple(parts), -1).flatten(-2) if interleaved else torch.cat(tuple(parts), -1)


def used_rows(rows: Tensor, offs: Tensor) -> Tensor:
    """Which rows are not padding, as a column."""
    return (torch.arange(rows.shape[0], device=rows.device) < offs[-1]).unsqueeze(1)


def gradients(dy: Tensor, gate: Tensor, up: Tensor, offs: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Of gate and up, rounded once."""
    acc = accumulator(gate.dtype)
    values, wide = gate.to(acc), dy.to(acc)
    sigmoid = torch.sigmoid(values)
    silu = values * sigmoid
    results = [wide * up.to(acc) * (sigmoid + silu * (1 - sigmoid)), wide * silu]
    if offs is not None:
        results = [result.where(used_rows(result, offs), 0) for result in results]
    d_gate, d_up = (packed(result, gate.dtype) for result in results)
    return d_gate, d_up


def second_gradients(
    dd_gate: Tensor, dd_up: Tensor, dy: Tensor, gate: Tensor, up: Tensor, offs: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Of dy, gate and up, where dd_gate and dd_up are those of the results of `gradients`."""
    acc = accumulator(gate.dtype)
    a, b, wide, values, ups = (tensor.to(acc) for tensor in (dd_gate, dd_up, dy, gate, up))
    sigmoid = torch.sigmoid(values)
    silu = values * sigmoid
    slope = sigmoid + silu * (1 - sigmoid)
    bend = sigmoid * (1 - sigmoid) * (2 + values * (1 - 2 * sigmoid))
    results = [a * ups * slope + b * silu, wide * (a * ups * bend + b * slope), a * wide * slope]
    if offs is not None:
        results = [result.where(used_rows(result, offs), 0) for result in results]
    d_dy, d_gate, d_up = (result.to(gate.dtype) for result in results)
    return d_dy, d_gate, d_up
