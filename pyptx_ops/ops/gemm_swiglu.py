"""gemm_swiglu: the up projection of a gated MLP and its activation, in one kernel."""

from __future__ import annotations

from torch import Tensor

from pyptx_ops import dispatch
from pyptx_ops.dispatch import gemm_swiglu as kernels
from pyptx_ops.ops import _swiglu, gemm, swiglu
from pyptx_ops.ops._checks import DTYPES, accumulator, bad_device, bad_dtype, bad_shape, packed
from pyptx_ops.ops._register import register
from pyptx_ops.ops.silu_and_mul import silu_and_mul

__all__ = ["gemm_swiglu", "reference"]


def check(a: Tensor, w13: Tensor, bias: Tensor | None) -> None:
    dtype, rows, weights = a.dtype, a.shape, w13.shape
    if dtype not in DTYPES:
        bad_dtype("gemm_swiglu", "a", dtype, DTYPES)
    if w13.dtype is not dtype:
        bad_dtype("gemm_swiglu", "w13", w13.dtype, f"{dtype} like a")
    if not rows:
        bad_shape("gemm_swiglu", "a", a, "(..., K)")
    if len(weights) != 2 or weights[0] != rows[-1] or weights[1] % 2:
        bad_shape("gemm_swiglu", "w13", w13, f"(K, 2 d) with K = {rows[-1]} as in a")
    if w13.device != a.device:
        bad_device("gemm_swiglu", "w13", w13, a.device)
    if bias is not None:
        if bias.dtype is not dtype:
            bad_dtype("gemm_swiglu", "bias", bias.dtype, f"{dtype} like a")
        if bias.shape != weights[1:]:
            bad_shape("gemm_swiglu", "bias", bias, f"(2 d,) with 2 d = {weights[1]} as in w13")
        if bias.device != a.device:
            bad_device("gemm_swiglu", "bias", bias, a.device)


def reference(a: Tensor, w13: Tensor, bias: Tensor | None = None, interleaved: bool = False) -> Tensor:
    """The op in plain torch, without checks. Gate and up are not rounded."""
    both = gemm.reference(a, w13, bias, out_dtype=accumulator(a.dtype))
    return packed(swiglu.reference(*_swiglu.split(both, interleaved)), a.dtype)


def run(a: Tensor, w13: Tensor, bias: Tensor | None = None, interleaved: bool = False) -> Tensor:
    check(a, w13, bias)
    if dispatch.runs_kernels(a):
        _swiglu.check_counted("gemm_swiglu", a, w13)
        return kernels.gemm_swiglu(a, w13, bias, interleaved)
    return reference(a, w13, bias, interleaved)


def fake(a: Tensor, w13: Tensor, bias: Tensor | None = None, interleaved: bool = False) -> Tensor:
    check(a, w13, bias)
    return a.new_empty((*a.shape[:-1], w13.shape[1] // 2))


def recorded(a: Tensor, w13: Tensor, bias: Tensor | None = None, interleaved: bool = False) -> Tensor:
    """As two ops, so that gate and up, which the backward needs, are kept: the product again would cost more."""
    check(a, w13, bias)
    return silu_and_mul(gemm.gemm(a, w13, bias), interleaved)


_op = register(
    "gemm_swiglu(Tensor a, Tensor w13, Tensor? bias=None, bool interleaved=False) -> Tensor",
    run=run,
    fake=fake,
    recorded=recorded,
    autocast=True,
).call


def gemm_swiglu(a: Tensor, w13: Tensor, bias: Tensor | None = None, interleaved: bool = False) -> Tensor:
    """`silu(gate) * up`, where gate and up are the columns of `a @ w13 + bias`.

    Products are accumulated in fp32 (fp64 for fp64 inputs) and activated as they are; the result is rounded once. Where
    a gradient is recorded, the call is `silu_and_mul(gemm(a, w13, bias), interleaved)`, so that gate and up are kept,
    and are rounded before the activation. Under autocast the inputs are cast to its dtype.

    Args:
        a: (..., K); bf16, fp16, fp32 or fp64, any strides. On CUDA, fp32 and fp64 take the reference path.
        w13: (K, 2 d), dtype and device of `a`, any strides: `w.t()` of a (2 d, K) weight costs no copy.
        bias: (2 d,), dtype and device of `a`, in the order of the columns of `w13`.
        interleaved: False: the gate is the first half of the columns, up the second. True: they alternate, gate first.

    Returns:
        (..., d), the dtype of `a`, contiguous.

    Raises:
        TypeError: a dtype that is not taken, or dtypes that differ.
        ValueError: shapes that do not match, an odd number of columns, or tensors on different devices; where kernels
            run also a size past 2**31 - 1.
    """
    return _op(a, w13, bias, interleaved)
