"""The kernel families that the build makes for sm_90a."""

from __future__ import annotations

from ..family import Family
from . import gemm
from .tuning import gemm as gemm_tuning

__all__ = ["FAMILIES"]

FAMILIES = (Family("gemm", gemm_tuning.configs(), gemm.build),)
