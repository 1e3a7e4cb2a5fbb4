"""grouped_gemm_wgrad: per group, the transposed rows of a times those of dy. The backward of grouped_gemm."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pyptx_ops.ops import _ragged
from pyptx_ops.ops._checks import (
    DTYPES,
    accumulator,
    bad_device,
    bad_dtype,
    bad_shape,
    check_offs,
    check_offs_values,
    packed,
)
from pyptx_ops.ops._register import register

__all__ = ["reference", "wgrad"]


def check(a: Tensor, dy: Tensor, offs: Tensor) -> None:
    """All but that the row counts agree, which fakes must assert and eager calls may compare."""
    if a.dtype not in DTYPES:
        bad_dtype("grouped_gemm_wgrad", "a", a.dtype, DTYPES)
    if dy.dtype is not a.dtype:
        bad_dtype("grouped_gemm_wgrad", "dy", dy.dtype, f"{a.dtype} like a")
    if a.dim() != 2:
        bad_shape("grouped_gemm_wgrad", "a", a, "(M, K)")
    if dy.dim() != 2:
        bad_shape("grouped_gemm_wgrad", "dy", dy, "(M, N)")
    if dy.device != a.device:
        bad_device("grouped_gemm_wgrad", "dy", dy, a.device)
    check_offs("grouped_gemm_wgrad", offs, a.device)


def reference(a: Tensor, dy: Tensor, offs: Tensor) -> Tensor:
    """The op in plain torch; `offs` is checked where that needs no synchronisation."""
    acc = accumulator(a.dtype)
    if offs.is_cpu:
        ends = check_offs_values("grouped_gemm_wgrad", offs, a.shape[0])
        return packed(_ragged.grouped_wgrad(a, dy, ends, acc), a.dtype)
    return packed(_ragged.grouped_wgrad_tiled(a, dy, offs, acc), a.dtype)


def run(a: Tensor, dy: Tensor, offs: Tensor) -> Tensor:
    check(a, dy, offs)
    if dy.shape[0] != a.shape[0]:
        bad_shape("grouped_gemm_wgrad", "dy", dy, f"(M, N) with M = {a.shape[0]} as in a")
    if _torch_takes(a, dy, offs):
        # torch leaves the matrix of an empty group unwritten on some devices.
        sizes = torch.diff(offs, prepend=offs.new_zeros(1))
        product = torch._grouped_mm(_aligned(a).t(), _aligned(dy), offs=offs.contiguous())
        return product.where((sizes > 0).view(-1, 1, 1), 0)
    return reference(a, dy, offs)


def _torch_takes(a: Tensor, dy: Tensor, offs: Tensor) -> bool:
    """Whether torch's own grouped product has a kernel for these: bf16 on Hopper, widths in units of 16 bytes."""
    return (
        a.is_cuda
        and a.dtype is torch.bfloat16
        and torch.cuda.get_device_capability(a.device) == (9, 0)
        and offs.shape[0] < 1024
        and a.numel() > 0
        and dy.numel() > 0
        and a.shape[1] % 8 == 0
        and dy.shape[1] % 8 == 0
    )


def _aligned(rows: Tensor) -> Tensor:
    """These rows at addresses that are multiples of 16 bytes: as they lie, or copied."""
    pitch, step = rows.stride()
    if step == 1 and pitch >= rows.shape[1] and pitch % 8 == 0 and rows.data_ptr() % 16 == 0:
        return rows
    return rows.clone(memory_format=torch.contiguous_format)


def fake(a: Tensor, dy: Tensor, offs: Tensor) -> Tensor:
    check(a, dy, offs)
    torch._check_value(
        dy.shape[0] == a.shape[0],
        lambda: f"grouped_gemm_wgrad: dy has shape {tuple(dy.shape)}, wanted (M, N) with M = {a.shape[0]} as in a",
    )
    return a.new_empty((offs.shape[0], a.shape[1], dy.shape[1]))


def save(ctx: Any, a: Tensor, dy: Tensor, offs: Tensor) -> None:
    ctx.save_for_backward(a, dy, offs)


def backward(ctx: Any, dw: Tensor) -> tuple[Tensor | None, ...]:
    a, dy, offs = ctx.saved_tensors
    grouped_gemm = torch.ops.pyptx.grouped_gemm.default
    da = grouped_gemm(dy, dw.transpose(1, 2), offs) if ctx.needs_input_grad[0] else None
    ddy = grouped_gemm(a, dw, offs) if ctx.needs_input_grad[1] else None
    return da, ddy, None


wgrad = register(
    "grouped_gemm_wgrad(Tensor a, Tensor dy, Tensor offs) -> Tensor", run=run, fake=fake, save=save, backward=backward
).call
"""(M, K), (M, N), (G,) -> (G, K, N): `a[rows of g].T @ dy[rows of g]`; zero for an empty group, rows past `offs[-1]`
unused. Sums in fp32 (fp64 for fp64), one rounding, contiguous."""
