"""The ops, one file each: schema, checks, fake, reference, autograd. Importing this registers `torch.ops.pyptx`."""

from __future__ import annotations

from pyptx_ops.ops import (
    fused_add_rms_norm,
    gemm,
    gemm_swiglu,
    grouped_gemm,
    grouped_gemm_swiglu,
    rms_norm,
    silu_and_mul,
    silu_and_mul_bwd,
    swiglu,
    swiglu_bwd,
)

__all__ = [
    "fused_add_rms_norm",
    "gemm",
    "gemm_swiglu",
    "grouped_gemm",
    "grouped_gemm_swiglu",
    "rms_norm",
    "silu_and_mul",
    "silu_and_mul_bwd",
    "swiglu",
    "swiglu_bwd",
]
