"""gemm: a (..., K) @ b (K, N) + bias, accumulated in fp32 and rounded once."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pyptx_ops import dispatch
from pyptx_ops.dispatch import gemm as kernels
from pyptx_ops.ops._checks import DTYPES, accumulator, bad_device, bad_dtype, bad_shape, check_out_dtype, packed
from pyptx_ops.ops._register import register

__all__ = ["gemm", "reference"]


def check(a: Tensor, b: Tensor, bias: Tensor | None, out_dtype: torch.dtype | None) -> None:
    dtype, rows, matrix = a.dtype, a.shape, b.shape
    if dtype not in DTYPES:
        bad_dtype("gemm", "a", dtype, DTYPES)
    if b.dtype is not dtype:
        bad_dtype("gemm", "b", b.dtype, f"{dtype} like a")
    if not rows:
        bad_shape("gemm", "a", a, "(..., K)")
    if len(matrix) != 2 or matrix[0] != rows[-1]:
        bad_shape("gemm", "b", b, f"(K, N) with K = {rows[-1]} as in a")
    if b.device != a.device:
        bad_device("gemm", "b", b, a.device)
    if bias is not None:
        if bias.dtype is not dtype:
            bad_dtype("gemm", "bias", bias.dtype, f"{dtype} like a")
        if bias.shape != matrix[1:]:
            bad_shape("gemm", "bias", bias, f"(N,) with N = {matrix[1]} as in b")
        if bias.device != a.device:
            bad_device("gemm", "bias", bias, a.device)
    if out_dtype is not None:
        check_out_dtype("gemm", out_dtype, dtype)


def reference(a: Tensor, b: Tensor, bias: Tensor | None = None, *, out_dtype: torch.dtype | None = None) -> Tensor:
    """The op in plain torch, without checks. Sums are fp32 (fp64 for fp64), with one rounding at the end."""
    acc = accumulator(a.dtype)
    out = torch.matmul(a.to(acc), b.to(acc))
    if bias is not None:
        out += bias
    return packed(out, out_dtype or a.dtype)


def run(a: Tensor, b: Tensor, bias: Tensor | None = None, *, out_dtype: torch.dtype | None = None) -> Tensor:
    check(a, b, bias, out_dtype)
    if dispatch.runs_kernels(a):
        return kernels.gemm(a, b, bias, out_dtype)
    return reference(a, b, bias, out_dtype=out_dtype)


def fake(a: Tensor, b: Tensor, bias: Tensor | None = None, *, out_dtype: torch.dtype | None = None) -> Tensor:
    check(a, b, bias, out_dtype)
    return a.new_empty((*a.shape[:-1], b.shape[1]), dtype=out_dtype or a.dtype)


def save(ctx: Any, a: Tensor, b: Tensor, bias: Tensor | None = None, *, out_dtype: torch.dtype | None = None) -> None:
    ctx.save_for_backward(a, b)


def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    a, b = ctx.saved_tensors
    needs_a, needs_b, needs_bias = ctx.needs_input_grad[:3]
    rows = _rows(dy.to(a.dtype))
    da = _op(rows, b.t()).view(a.shape) if needs_a else None
    db = _op(_rows(a).t(), rows) if needs_b else None
    dbias = rows.sum(0, dtype=accumulator(a.dtype)).to(a.dtype) if needs_bias else None
    return da, db, dbias


def _rows(tensor: Tensor) -> Tensor:
    """(..., K) as (rows, K), sizes 0 included."""
    return tensor.unsqueeze(0) if tensor.dim() == 1 else tensor.flatten(0, -2)


_op = register(
    "gemm(Tensor a, Tensor b, Tensor? bias=None, *, ScalarType? out_dtype=None) -> Tensor",
    run=run,
    fake=fake,
    save=save,
    backward=backward,
    autocast=True,
).call


def gemm(a: Tensor, b: Tensor, bias: Tensor | None = None, *, out_dtype: torch.dtype | None = None) -> Tensor:
    """Matrix product `a @ b + bias`.

    Products are accumulated in fp32 (fp64 for fp64 inputs), the bias is added to the unrounded sum, and the result is
    rounded once. A product over K = 0 is zero (plus the bias). Under autocast the inputs are cast to its dtype.

    Args:
        a: (..., K); bf16, fp16, fp32 or fp64, any strides. On CUDA, fp32 and fp64 take the reference path.
        b: (K, N), dtype and device of `a`, any strides: `w.t()` of a (N, K) weight costs no copy.
        bias: (N,), dtype and device of `a`.
        out_dtype: dtype of the result: None or that of `a`, or torch.float32.

    Returns:
        (..., N), contiguous.

    Raises:
        TypeError: a dtype that is not taken, or dtypes that differ.
        ValueError: shapes that do not match, or tensors on different devices.
    """
    if out_dtype is None:  # a default that is not passed costs nothing
        return _op(a, b, bias)
    return _op(a, b, bias, out_dtype=out_dtype)
