"""grouped_gemm: rows of a in consecutive groups, each times its own matrix of b. One launch, any group sizes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pyptx_ops import dispatch
from pyptx_ops.dispatch import gemm as kernels
from pyptx_ops.ops import _ragged
from pyptx_ops.ops._checks import (
    DTYPES,
    accumulator,
    bad_device,
    bad_dtype,
    bad_shape,
    check_offs,
    check_offs_values,
    check_out_dtype,
    packed,
)
from pyptx_ops.ops._register import register
from pyptx_ops.ops.grouped_gemm_wgrad import wgrad

__all__ = ["grouped_gemm", "reference"]


def check(a: Tensor, b: Tensor, offs: Tensor | None, bias: Tensor | None, out_dtype: torch.dtype | None) -> None:
    dtype, device, rows, matrices = a.dtype, a.device, a.shape, b.shape
    if dtype not in DTYPES:
        bad_dtype("grouped_gemm", "a", dtype, DTYPES)
    if b.dtype is not dtype:
        bad_dtype("grouped_gemm", "b", b.dtype, f"{dtype} like a")
    if len(rows) != 2 or len(matrices) != 3:
        raise ValueError(
            f"grouped_gemm: a has shape {tuple(rows)} and b {tuple(matrices)}; "
            "only a (M, K) with b (G, K, N) is taken (2D x 3D)"
        )
    if matrices[1] != rows[1]:
        bad_shape("grouped_gemm", "b", b, f"(G, K, N) with K = {rows[1]} as in a")
    if b.device != device:
        bad_device("grouped_gemm", "b", b, device)
    if offs is None:
        raise ValueError("grouped_gemm: offs is None, wanted int32 (G,), the cumulative group ends")
    check_offs("grouped_gemm", offs, device)
    if offs.shape != matrices[:1]:
        bad_shape("grouped_gemm", "offs", offs, f"(G,) with G = {matrices[0]}, the number of matrices in b")
    if bias is not None:
        if bias.dtype is not dtype:
            bad_dtype("grouped_gemm", "bias", bias.dtype, f"{dtype} like a")
        if bias.shape != matrices[::2]:
            bad_shape("grouped_gemm", "bias", bias, f"(G, N) = {tuple(matrices[::2])} as in b")
        if bias.device != device:
            bad_device("grouped_gemm", "bias", bias, device)
    if out_dtype is not None:
        check_out_dtype("grouped_gemm", out_dtype, dtype)


def reference(
    a: Tensor,
    b: Tensor,
    offs: Tensor,
    bias: Tensor | None = None,
    *,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """The op in plain torch, with checks of `offs` only, and only where that needs no synchronisation."""
    acc = accumulator(a.dtype)
    if offs.is_cpu:
        ends = check_offs_values("grouped_gemm", offs, a.shape[0])
        out = _ragged.grouped_product(a, b, ends, bias, acc)
    else:
        out = _ragged.grouped_product_tiled(a, b, offs, bias, acc)
    return packed(out, out_dtype or a.dtype)


def run(
    a: Tensor,
    b: Tensor,
    offs: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    check(a, b, offs, bias, out_dtype)
    assert offs is not None  # checked
    if dispatch.runs_kernels(a):
        return kernels.grouped_gemm(a, b, offs, bias, out_dtype)
    return reference(a, b, offs, bias, out_dtype=out_dtype)


def fake(
    a: Tensor,
    b: Tensor,
    offs: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    check(a, b, offs, bias, out_dtype)
    return a.new_empty((a.shape[0], b.shape[2]), dtype=out_dtype or a.dtype)


def save(
    ctx: Any,
    a: Tensor,
    b: Tensor,
    offs: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    out_dtype: torch.dtype | None = None,
) -> None:
    ctx.save_for_backward(a, b, offs)


def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    a, b, offs = ctx.saved_tensors
    needs_a, needs_b, _, needs_bias = ctx.needs_input_grad[:4]
    dy = dy.to(a.dtype)
    da = _op(dy, b.transpose(1, 2), offs) if needs_a else None
    db = wgrad(a, dy, offs) if needs_b else None
    return da, db, None, _bias_gradient(dy, offs) if needs_bias else None


def _bias_gradient(dy: Tensor, offs: Tensor) -> Tensor:
    """Sums of dy over the rows of each group, as a product: no atomics, so the same sums each time."""
    rows, acc = dy.shape[0], accumulator(dy.dtype)
    group = _ragged.row_groups(offs, rows)
    membership = (group == torch.arange(offs.shape[0], device=dy.device).unsqueeze(1)).to(acc)
    clean = dy.to(acc).where((group < offs.shape[0]).unsqueeze(1), 0)
    return torch.mm(membership, clean).to(dy.dtype)


_op = register(
    "grouped_gemm(Tensor a, Tensor b, Tensor? offs=None, Tensor? bias=None, *, ScalarType? out_dtype=None) -> Tensor",
    run=run,
    fake=fake,
    save=save,
    backward=backward,
    autocast=True,
).call


def grouped_gemm(
    a: Tensor,
    b: Tensor,
    offs: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """Row groups of `a`, each times its own matrix: rows `offs[g-1]` to `offs[g] - 1` give `a @ b[g] + bias[g]`.

    Groups may have any size, 0 included. Rows at and past `offs[-1]` are zero in the result, and in the gradient of
    `a`; the gradient of an empty group's matrix is zero. What those rows of `a` hold is never used. On CUDA `offs` is
    read by the kernels only, so that a captured graph can be replayed with other offsets. Products are accumulated in
    fp32 (fp64 for fp64 inputs), the bias is added to the unrounded sum, and the result is rounded once. Under autocast
    the inputs are cast to its dtype. The meaning is that of torch.nn.functional.grouped_mm, without its limits.

    Args:
        a: (M, K); bf16, fp16, fp32 or fp64, any strides. On CUDA, fp32 and fp64 take the reference path.
        b: (G, K, N), G >= 1, dtype and device of `a`, any strides: `w.transpose(1, 2)` of a (G, N, K) weight costs no
            copy.
        offs: (G,) int32 on the device of `a`: the cumulative ends of the groups, not decreasing, at most M. On a CPU
            the values are checked; on CUDA they are not, and must hold.
        bias: (G, N), dtype and device of `a`.
        out_dtype: dtype of the result: None or that of `a`, or torch.float32.

    Returns:
        (M, N), contiguous.

    Raises:
        TypeError: a dtype that is not taken, or dtypes that differ.
        ValueError: ranks, shapes or devices that do not match; no offs; on a CPU also an offs that is negative,
            decreasing or past the last row.
    """
    if out_dtype is None:  # a default that is not passed costs nothing
        return _op(a, b, offs, bias)
    return _op(a, b, offs, bias, out_dtype=out_dtype)
