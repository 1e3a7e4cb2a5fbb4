"""Operands on the GPU, in every layout."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["offs_of", "operand"]

DEVICE = "cuda"


def operand(rows: int, columns: int, layout: str = "N", dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """Normal numbers, (rows, columns); "T" where memory holds the transpose."""
    if layout == "T":
        return operand(columns, rows, "N", dtype).t()
    return torch.empty((rows, columns), dtype=dtype, device=DEVICE).normal_()


def offs_of(counts: Tensor) -> Tensor:
    """Cumulative group ends."""
    return counts.cumsum(0).to(DEVICE, torch.int32)
