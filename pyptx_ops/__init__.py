"""Prebuilt fused ops for NVIDIA Hopper, and the DSL that they are written in.

Importing the package registers `torch.ops.pyptx` and offers the ops as typed functions. Where torch is not installed
(a machine that only builds kernels), the DSL and the build work without it.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

if importlib.util.find_spec("torch") is not None:
    from pyptx_ops.ops.fused_add_rms_norm import fused_add_rms_norm, fused_add_rms_norm_
    from pyptx_ops.ops.gemm import gemm
    from pyptx_ops.ops.gemm_swiglu import gemm_swiglu
    from pyptx_ops.ops.grouped_gemm import grouped_gemm
    from pyptx_ops.ops.grouped_gemm_swiglu import grouped_gemm_swiglu
    from pyptx_ops.ops.rms_norm import rms_norm
    from pyptx_ops.ops.silu_and_mul import silu_and_mul
    from pyptx_ops.ops.swiglu import swiglu

if TYPE_CHECKING:
    from pyptx_ops.integrations.patching import patch, unpatch
    from pyptx_ops.simulator import simulate

__version__ = "0.1.0"

__all__ = [
    "fused_add_rms_norm",
    "fused_add_rms_norm_",
    "gemm",
    "gemm_swiglu",
    "grouped_gemm",
    "grouped_gemm_swiglu",
    "patch",
    "rms_norm",
    "silu_and_mul",
    "simulate",
    "swiglu",
    "unpatch",
]


def __getattr__(name: str) -> Any:
    if name in ("patch", "unpatch"):
        return getattr(importlib.import_module("pyptx_ops.integrations.patching"), name)
    if name == "simulate":
        return importlib.import_module("pyptx_ops.simulator").simulate
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
