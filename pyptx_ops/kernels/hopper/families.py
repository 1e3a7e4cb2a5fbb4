"""The kernel families that the build makes for sm_90a."""

from __future__ import annotations

from .. import rms_norm, swiglu
from ..family import Family
from . import gemm
from .tuning import gemm as gemm_tuning
from .tuning import norm as norm_tuning
from .tuning import swiglu as swiglu_tuning

__all__ = ["FAMILIES"]

FAMILIES = (
    Family("gemm", gemm_tuning.configs(), gemm.build),
    Family("rms_norm", norm_tuning.configs(), rms_norm.build),
    Family("swiglu", swiglu_tuning.configs(), swiglu.build),
)
