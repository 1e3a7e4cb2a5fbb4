"""grouped_gemm: products of consecutive groups, given by their ends. One launch, any group sizes.

Rows of a in groups, each times its own matrix of b (2D x 3D); or the shared dimension in groups, each a product of its
own (2D x 2D), which is the weight gradient of the first, as the first gives both gradients of the second.
"""

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

__all__ = ["grouped_gemm", "reference"]


def check(a: Tensor, b: Tensor, offs: Tensor | None, bias: Tensor | None, out_dtype: torch.dtype | None) -> None:
    """All but that the ragged dimension of 2D x 2D agrees, which fakes must assert and eager calls may compare."""
    dtype, device, rows, matrices = a.dtype, a.device, a.shape, b.shape
    if dtype not in DTYPES:
        bad_dtype("grouped_gemm", "a", dtype, DTYPES)
    if b.dtype is not dtype:
        bad_dtype("grouped_gemm", "b", b.dtype, f"{dtype} like a")
    if len(rows) != 2 or len(matrices) not in (2, 3):
        raise ValueError(
            f"grouped_gemm: a has shape {tuple(rows)} and b {tuple(matrices)}; "
            "taken are a (M, K) with b (G, K, N) (2D x 3D) or b (K, N) (2D x 2D)"
        )
    if len(matrices) == 3 and matrices[1] != rows[1]:
        bad_shape("grouped_gemm", "b", b, f"(G, K, N) with K = {rows[1]} as in a")
    if b.device != device:
        bad_device("grouped_gemm", "b", b, device)
    if offs is None:
        raise ValueError("grouped_gemm: offs is None, wanted int32 (G,), the cumulative group ends")
    check_offs("grouped_gemm", offs, device)
    groups = offs.shape[0]
    if len(matrices) == 3 and groups != matrices[0]:
        bad_shape("grouped_gemm", "offs", offs, f"(G,) with G = {matrices[0]}, the number of matrices in b")
    if bias is not None:
        if bias.dtype is not dtype:
            bad_dtype("grouped_gemm", "bias", bias.dtype, f"{dtype} like a")
        if bias.shape != (groups, matrices[-1]):
            bad_shape("grouped_gemm", "bias", bias, f"(G, N) = {(groups, matrices[-1])} as in offs and b")
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
    if b.dim() == 2:
        if offs.is_cpu:
            out = _ragged.grouped_wgrad(a.t(), b, check_offs_values("grouped_gemm", offs, b.shape[0]), acc)
        else:
            out = _ragged.grouped_wgrad_tiled(a.t(), b, offs, acc)
        if bias is not None:
            out += bias.unsqueeze(1)
    elif offs.is_cpu:
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
    ragged_k = b.dim() == 2
    if ragged_k and b.shape[0] != a.shape[1]:
        bad_shape("grouped_gemm", "b", b, f"(K, N) with K = {a.shape[1]} as in a")
    if dispatch.runs_kernels(a):
        product = kernels.grouped_gemm_ragged_k if ragged_k else kernels.grouped_gemm
        return product(a, b, offs, bias, out_dtype)
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
    if b.dim() == 2:
        torch._check_value(
            b.shape[0] == a.shape[1],
            lambda: f"grouped_gemm: b has shape {tuple(b.shape)}, wanted (K, N) with K = {a.shape[1]} as in a",
        )
        assert offs is not None  # checked
        return a.new_empty((offs.shape[0], a.shape[0], b.shape[1]), dtype=out_dtype or a.dtype)
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
    if b.dim() == 2:
        da = _op(b, dy.transpose(1, 2), offs).t() if needs_a else None
        db = _op(a.t(), dy, offs) if needs_b else None
        return da, db, None, dy.sum(1, dtype=accumulator(a.dtype)).to(a.dtype) if needs_bias else None
    da = _op(dy, b.transpose(1, 2), offs) if needs_a else None
    db = _op(a.t(), dy, offs) if needs_b else None
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

    With a two-dimensional `b` the groups divide K instead, and each is a product of its own: with s and e the ends
    before and of group g, `out[g] = a[:, s:e] @ b[s:e] + bias[g]`. `grouped_gemm(x.t(), dy, offs)` is the gradient of
    the matrices in `grouped_gemm(x, b, offs)`.

    Groups may have any size, 0 included. Rows at and past `offs[-1]` are zero in the result, and in the gradient of
    `a`; the product of an empty part of K is zero. What lies at and past `offs[-1]` in an operand is never used. On
    CUDA `offs` is read by the kernels only, so that a captured graph can be replayed with other offsets. Products are
    accumulated in fp32 (fp64 for fp64 inputs), the bias is added to the unrounded sum, and the result is rounded once.
    Under autocast the inputs are cast to its dtype. The meaning is that of torch.nn.functional.grouped_mm, without its
    limits.

    Args:
        a: (M, K); bf16, fp16, fp32 or fp64, any strides. On CUDA, fp32 and fp64 take the reference path.
        b: (G, K, N) or (K, N), dtype and device of `a`, any strides: `w.transpose(1, 2)` of a (G, N, K) weight costs
            no copy, and with groups along K neither does `x.t()` of (K, M) tokens.
        offs: (G,) int32, G >= 1, on the device of `a`: the cumulative ends of the groups, not decreasing, at most M,
            or K. On a CPU the values are checked; on CUDA they are not, and must hold.
        bias: (G, N), dtype and device of `a`.
        out_dtype: dtype of the result: None or that of `a`, or torch.float32.

    Returns:
        (M, N), or (G, M, N) with groups along K; contiguous.

    Raises:
        TypeError: a dtype that is not taken, or dtypes that differ.
        ValueError: ranks, shapes or devices that do not match; no offs; on a CPU also an offs that is negative,
            decreasing or past the last row.
    """
    if out_dtype is None:  # a default that is not passed costs nothing
        return _op(a, b, offs, bias)
    return _op(a, b, offs, bias, out_dtype=out_dtype)
