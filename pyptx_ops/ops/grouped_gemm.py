"""grouped_gemm: products of consecutive groups, given by their ends. One launch, any group sizes.

Rows of a in groups, each times its own matrix of b (2D x 3D), or the same of columns of b (3D x 2D); the shared
dimension in groups, each a product of its own (2D x 2D); or matrices in pairs (3D x 3D). Each form's gradients are
products of another form or its own.
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


ROWS, DEPTH, COLUMNS, BATCH = (2, 3), (2, 2), (3, 2), (3, 3)
"""The forms, by the ranks of a and b: which dimension the groups divide, or none."""

_TAKEN = "taken are a (M, K) with b (G, K, N) or (K, N), and a (G, M, K) with b (K, N) or (G, K, N)"


def _form(a: Tensor, b: Tensor) -> tuple[int, int]:
    return len(a.shape), len(b.shape)


def check(a: Tensor, b: Tensor, offs: Tensor | None, bias: Tensor | None, out_dtype: torch.dtype | None) -> None:
    """All but that a ragged K agrees, which fakes must assert and eager calls may compare."""
    dtype, device, form = a.dtype, a.device, _form(a, b)
    if dtype not in DTYPES:
        bad_dtype("grouped_gemm", "a", dtype, DTYPES)
    if b.dtype is not dtype:
        bad_dtype("grouped_gemm", "b", b.dtype, f"{dtype} like a")
    if form not in (ROWS, DEPTH, COLUMNS, BATCH):
        raise ValueError(f"grouped_gemm: a has shape {tuple(a.shape)} and b {tuple(b.shape)}; {_TAKEN}")
    if form != DEPTH and b.shape[-2] != a.shape[-1]:
        lead = "G, " if form[1] == 3 else ""
        bad_shape("grouped_gemm", "b", b, f"({lead}K, N) with K = {a.shape[-1]} as in a")
    if form == BATCH and b.shape[0] != a.shape[0]:
        bad_shape("grouped_gemm", "b", b, f"(G, K, N) with G = {a.shape[0]} as in a")
    if b.device != device:
        bad_device("grouped_gemm", "b", b, device)
    if form == BATCH:
        groups = a.shape[0]
        if offs is not None:
            raise ValueError("grouped_gemm: offs is given, wanted None with a (G, M, K) and b (G, K, N)")
    else:
        groups = _check_offs(a, b, offs)
    if bias is not None:
        width, name = (a.shape[1], "M") if form == COLUMNS else (b.shape[-1], "N")
        if bias.dtype is not dtype:
            bad_dtype("grouped_gemm", "bias", bias.dtype, f"{dtype} like a")
        if bias.shape != (groups, width):
            bad_shape("grouped_gemm", "bias", bias, f"(G, {name}) = {(groups, width)}")
        if bias.device != device:
            bad_device("grouped_gemm", "bias", bias, device)
    if out_dtype is not None:
        check_out_dtype("grouped_gemm", out_dtype, dtype)


def _check_offs(a: Tensor, b: Tensor, offs: Tensor | None) -> int:
    """Returns the number of groups."""
    if offs is None:
        raise ValueError("grouped_gemm: offs is None, wanted int32 (G,), the cumulative group ends")
    check_offs("grouped_gemm", offs, a.device)
    groups: int = offs.shape[0]
    for name, matrices in (("a", a), ("b", b)):
        if len(matrices.shape) == 3 and groups != matrices.shape[0]:
            wanted = f"(G,) with G = {matrices.shape[0]}, the number of matrices in {name}"
            bad_shape("grouped_gemm", "offs", offs, wanted)
    return groups


def reference(
    a: Tensor,
    b: Tensor,
    offs: Tensor | None,
    bias: Tensor | None = None,
    *,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """The op in plain torch, with checks of `offs` only, and only where that needs no synchronisation."""
    form, acc, dtype = _form(a, b), accumulator(a.dtype), out_dtype or a.dtype
    if form == BATCH:
        out = torch.bmm(a.to(acc), b.to(acc))
        return packed(out if bias is None else out + bias.unsqueeze(1), dtype)
    assert offs is not None  # checked
    if form == COLUMNS:
        return packed(reference(b.t(), a.transpose(1, 2), offs, bias, out_dtype=acc).t(), dtype)
    if form == DEPTH:
        if offs.is_cpu:
            out = _ragged.grouped_wgrad(a.t(), b, check_offs_values("grouped_gemm", offs, b.shape[0]), acc)
        else:
            out = _ragged.grouped_wgrad_tiled(a.t(), b, offs, acc)
        return packed(out if bias is None else out + bias.unsqueeze(1), dtype)
    if offs.is_cpu:
        ends = check_offs_values("grouped_gemm", offs, a.shape[0])
        return packed(_ragged.grouped_product(a, b, ends, bias, acc), dtype)
    return packed(_ragged.grouped_product_tiled(a, b, offs, bias, acc), dtype)


def run(
    a: Tensor,
    b: Tensor,
    offs: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    check(a, b, offs, bias, out_dtype)
    form = _form(a, b)
    if form == DEPTH and b.shape[0] != a.shape[1]:
        bad_shape("grouped_gemm", "b", b, f"(K, N) with K = {a.shape[1]} as in a")
    if not dispatch.runs_kernels(a):
        return reference(a, b, offs, bias, out_dtype=out_dtype)
    _check_sizes(a, b, offs)
    if form == BATCH:
        return kernels.batched_gemm(a, b, bias, out_dtype)
    assert offs is not None  # checked
    if form == COLUMNS:  # the rows of the transposed product; the result is turned round, which is one more pass
        return packed(kernels.grouped_gemm(b.t(), a.transpose(1, 2), offs, bias, out_dtype).t(), out_dtype or a.dtype)
    if form == DEPTH:
        return kernels.grouped_gemm_ragged_k(a, b, offs, bias, out_dtype)
    return kernels.grouped_gemm(a, b, offs, bias, out_dtype)


def _check_sizes(a: Tensor, b: Tensor, offs: Tensor | None) -> None:
    """What kernels count in 32 bits: each dimension, and the rows of all results where each group has its own."""
    for name, tensor in (("a", a), ("b", b), ("offs", offs)):
        if tensor is not None and max(tensor.shape) > kernels.MOST:
            bad_shape("grouped_gemm", name, tensor, f"sizes of at most {kernels.MOST}")
    if offs is not None and _form(a, b) == DEPTH and offs.shape[0] * a.shape[0] > kernels.MOST:
        groups = offs.shape[0]
        bad_shape("grouped_gemm", "a", a, f"(M, K) with G * M of at most {kernels.MOST}, where G = {groups}")


def fake(
    a: Tensor,
    b: Tensor,
    offs: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    check(a, b, offs, bias, out_dtype)
    form = _form(a, b)
    sizes: tuple[int, ...] = (a.shape[-2], b.shape[-1])
    if form == DEPTH:
        torch._check_value(
            b.shape[0] == a.shape[1],
            lambda: f"grouped_gemm: b has shape {tuple(b.shape)}, wanted (K, N) with K = {a.shape[1]} as in a",
        )
        assert offs is not None  # checked
        sizes = (offs.shape[0], *sizes)
    elif form == BATCH:
        sizes = (a.shape[0], *sizes)
    return a.new_empty(sizes, dtype=out_dtype or a.dtype)


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
    gradients = _GRADIENTS[_form(a, b)]
    da, db, dbias = gradients(a, b, offs, dy.to(a.dtype), needs_a, needs_b, needs_bias)
    return da, db, None, dbias


Gradients = tuple[Tensor | None, Tensor | None, Tensor | None]


def _rows_backward(a: Tensor, b: Tensor, offs: Tensor, dy: Tensor, *needs: bool) -> Gradients:
    needs_a, needs_b, needs_bias = needs
    da = _op(dy, b.transpose(1, 2), offs) if needs_a else None
    db = _op(a.t(), dy, offs) if needs_b else None
    return da, db, _row_sums(dy, offs) if needs_bias else None


def _depth_backward(a: Tensor, b: Tensor, offs: Tensor, dy: Tensor, *needs: bool) -> Gradients:
    needs_a, needs_b, needs_bias = needs
    da = _op(b, dy.transpose(1, 2), offs).t() if needs_a else None
    db = _op(a.t(), dy, offs) if needs_b else None
    return da, db, dy.sum(1, dtype=accumulator(a.dtype)).to(a.dtype) if needs_bias else None


def _columns_backward(a: Tensor, b: Tensor, offs: Tensor, dy: Tensor, *needs: bool) -> Gradients:
    """That of the rows of the transposed product."""
    needs_a, needs_b, needs_bias = needs
    db, da, dbias = _rows_backward(b.t(), a.transpose(1, 2), offs, dy.t(), needs_b, needs_a, needs_bias)
    return None if da is None else da.transpose(1, 2), None if db is None else db.t(), dbias


def _batch_backward(a: Tensor, b: Tensor, offs: None, dy: Tensor, *needs: bool) -> Gradients:
    """The gradient of b is a product along K in groups of M rows each, so that a and dy are read as they lie."""
    needs_a, needs_b, needs_bias = needs
    da = _op(dy, b.transpose(1, 2)) if needs_a else None
    db = None
    if needs_b and a.shape[0] * a.shape[1] > kernels.MOST:  # more rows than int32 ends count
        db = _op(a.transpose(1, 2), dy)
    elif needs_b:
        ends = torch.arange(1, a.shape[0] + 1, dtype=torch.int32, device=a.device) * a.shape[1]
        db = _op(a.flatten(0, 1).t(), dy.flatten(0, 1), ends) if a.shape[0] else torch.zeros_like(b)
    return da, db, dy.sum(1, dtype=accumulator(a.dtype)).to(a.dtype) if needs_bias else None


_GRADIENTS: dict[tuple[int, int], Any] = {
    ROWS: _rows_backward, DEPTH: _depth_backward, COLUMNS: _columns_backward, BATCH: _batch_backward,
}  # fmt: skip


def _row_sums(dy: Tensor, offs: Tensor) -> Tensor:
    """Sums of dy over the rows of each group: ones times them, as the product along K that it is, in any order."""
    ones = dy.new_ones((dy.shape[0], 8))[:, :1]  # rows of 16 bytes, which kernels read in place
    return _op(ones.t(), dy, offs).squeeze(1)


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
    """Products in groups: with s and e the ends before and of group g,

        a (M, K),    b (G, K, N):  out[s:e] = a[s:e] @ b[g] + bias[g]           rows, each group times its own matrix
        a (M, K),    b (K, N):     out[g] = a[:, s:e] @ b[s:e] + bias[g]        `grouped_gemm(x.t(), dy, offs)` is the
                                                                                gradient of b in the first form
        a (G, M, K), b (K, N):     out[:, s:e] = a[g] @ b[:, s:e] + bias[g, :, None]
        a (G, M, K), b (G, K, N):  out[g] = a[g] @ b[g] + bias[g]               no offs

    Groups may have any size, 0 included. Rows (or columns) at and past `offs[-1]` are zero in the result, and in
    gradients; the product of an empty part of K is zero. What lies at and past `offs[-1]` in an operand is never used.
    On CUDA `offs` is read by the kernels only, so that a captured graph can be replayed with other offsets. Products
    are accumulated in fp32 (fp64 for fp64 inputs), the bias is added to the unrounded sum, and the result is rounded
    once. Under autocast the inputs are cast to its dtype. The meaning is that of torch.nn.functional.grouped_mm,
    without its limits.

    Args:
        a: (M, K) or (G, M, K); bf16, fp16, fp32 or fp64, any strides. On CUDA, fp32 and fp64 take the reference path.
        b: (G, K, N) or (K, N), dtype and device of `a`, any strides: `w.transpose(1, 2)` of a (G, N, K) weight costs
            no copy, and with groups along K neither does `x.t()` of (K, M) tokens.
        offs: (G,) int32, G >= 1, on the device of `a`: the cumulative ends of the groups, not decreasing, at most the
            size of what they divide. On a CPU the values are checked; on CUDA they are not, and must hold.
        bias: (G, N), or (G, M) where the groups are columns; dtype and device of `a`.
        out_dtype: dtype of the result: None or that of `a`, or torch.float32.

    Returns:
        (M, N), or (G, M, N) where every group has a product of its own; contiguous.

    Raises:
        TypeError: a dtype that is not taken, or dtypes that differ.
        ValueError: ranks, shapes or devices that do not match; no offs; on a CPU also an offs that is negative,
            decreasing or past the last row; where kernels run also a size past 2**31 - 1, or with groups along K as
            many rows of the result.
    """
    if out_dtype is None:  # a default that is not passed costs nothing
        return _op(a, b, offs, bias)
    return _op(a, b, offs, bias, out_dtype=out_dtype)
