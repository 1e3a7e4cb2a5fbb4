"""grouped_gemm_swiglu: the up projection of gated experts and its activation, in one kernel."""

from __future__ import annotations

from torch import Tensor

from pyptx_ops import dispatch
from pyptx_ops.dispatch import gemm_swiglu as kernels
from pyptx_ops.ops import _swiglu, grouped_gemm, swiglu
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
from pyptx_ops.ops.silu_and_mul import silu_and_mul

__all__ = ["grouped_gemm_swiglu", "reference"]


def check(a: Tensor, w13: Tensor, offs: Tensor, bias: Tensor | None) -> None:
    dtype, rows, weights = a.dtype, a.shape, w13.shape
    if dtype not in DTYPES:
        bad_dtype("grouped_gemm_swiglu", "a", dtype, DTYPES)
    if w13.dtype is not dtype:
        bad_dtype("grouped_gemm_swiglu", "w13", w13.dtype, f"{dtype} like a")
    if len(rows) != 2:
        bad_shape("grouped_gemm_swiglu", "a", a, "(M, K)")
    if len(weights) != 3 or weights[1] != rows[1] or weights[2] % 2:
        bad_shape("grouped_gemm_swiglu", "w13", w13, f"(G, K, 2 d) with K = {rows[1]} as in a")
    if w13.device != a.device:
        bad_device("grouped_gemm_swiglu", "w13", w13, a.device)
    check_offs("grouped_gemm_swiglu", offs, a.device)
    if offs.shape[0] != weights[0]:
        bad_shape("grouped_gemm_swiglu", "offs", offs, f"(G,) with G = {weights[0]}, the number of matrices in w13")
    if bias is not None:
        if bias.dtype is not dtype:
            bad_dtype("grouped_gemm_swiglu", "bias", bias.dtype, f"{dtype} like a")
        if bias.shape != (weights[0], weights[2]):
            bad_shape("grouped_gemm_swiglu", "bias", bias, f"(G, 2 d) = {(weights[0], weights[2])}")
        if bias.device != a.device:
            bad_device("grouped_gemm_swiglu", "bias", bias, a.device)


def reference(a: Tensor, w13: Tensor, offs: Tensor, bias: Tensor | None = None, interleaved: bool = False) -> Tensor:
    """The op in plain torch; of `offs` the values are checked where that needs no synchronisation."""
    if offs.is_cpu:
        check_offs_values("grouped_gemm_swiglu", offs, a.shape[0])
    both = grouped_gemm.reference(a, w13, offs, bias, out_dtype=accumulator(a.dtype))
    return packed(swiglu.reference(*_swiglu.split(both, interleaved)), a.dtype)


def run(a: Tensor, w13: Tensor, offs: Tensor, bias: Tensor | None = None, interleaved: bool = False) -> Tensor:
    check(a, w13, offs, bias)
    if dispatch.runs_kernels(a):
        _swiglu.check_counted("grouped_gemm_swiglu", a, w13)
        return kernels.grouped_gemm_swiglu(a, w13, offs, bias, interleaved)
    return reference(a, w13, offs, bias, interleaved)


def fake(a: Tensor, w13: Tensor, offs: Tensor, bias: Tensor | None = None, interleaved: bool = False) -> Tensor:
    check(a, w13, offs, bias)
    return a.new_empty((a.shape[0], w13.shape[2] // 2))


def recorded(a: Tensor, w13: Tensor, offs: Tensor, bias: Tensor | None = None, interleaved: bool = False) -> Tensor:
    """As two ops, so that gate and up, which the backward needs, are kept: the product again would cost more."""
    check(a, w13, offs, bias)
    return silu_and_mul(grouped_gemm.grouped_gemm(a, w13, offs, bias), interleaved)


_op = register(
    "grouped_gemm_swiglu(Tensor a, Tensor w13, Tensor offs, Tensor? bias=None, bool interleaved=False) -> Tensor",
    run=run,
    fake=fake,
    recorded=recorded,
    autocast=True,
).call


def grouped_gemm_swiglu(
    a: Tensor, w13: Tensor, offs: Tensor, bias: Tensor | None = None, interleaved: bool = False
) -> Tensor:
    """`silu(gate) * up`, where gate and up are the columns of each group's `a[s:e] @ w13[g] + bias[g]`.

    Groups of rows as in :func:`grouped_gemm`: any sizes, 0 included; rows at and past `offs[-1]` are zero in the
    result and in gradients, and what they hold is not used. On CUDA `offs` is read by the kernels only. Products are
    accumulated in fp32 (fp64 for fp64 inputs) and activated as they are; the result is rounded once. Where a gradient
    is recorded, the call is `silu_and_mul(grouped_gemm(a, w13, offs, bias), interleaved)`, so that gate and up are
    kept, and are rounded before the activation. Under autocast the inputs are cast to its dtype.

    Args:
        a: (M, K); bf16, fp16, fp32 or fp64, any strides. On CUDA, fp32 and fp64 take the reference path.
        w13: (G, K, 2 d), dtype and device of `a`, any strides: `w.transpose(1, 2)` of a (G, 2 d, K) weight costs no
            copy.
        offs: (G,) int32, G >= 1, on the device of `a`: the cumulative ends of the groups, not decreasing, at most M.
            On a CPU the values are checked; on CUDA they are not, and must hold.
        bias: (G, 2 d), dtype and device of `a`, in the order of the columns of `w13`.
        interleaved: False: the gate is the first half of the columns, up the second. True: they alternate, gate first.

    Returns:
        (M, d), the dtype of `a`, contiguous.

    Raises:
        TypeError: a dtype that is not taken, or dtypes that differ.
        ValueError: shapes that do not match, an odd number of columns, or tensors on different devices; on a CPU also
            an offs that is negative, decreasing or past the last row; where kernels run also a size past 2**31 - 1.
    """
    return _op(a, w13, offs, bias, interleaved)
