"""The comparison that tests apply: every element within the bound that follows from an op's arithmetic."""

from __future__ import annotations

import torch
from torch import Tensor

from pyptx_ops.trials.bounds import excess, norm_bound, product_bound, rounding_bound, silu_bound, unit

__all__ = ["assert_within", "excess", "norm_bound", "product_bound", "rounding_bound", "silu_bound", "unit"]


def assert_within(actual: Tensor, truth: Tensor, bound: Tensor | float, what: str = "result") -> None:
    """Every element of `actual` is finite and within `bound` of `truth` (an infinity or NaN must be one in both)."""
    assert actual.shape == truth.shape, f"{what}: shape {tuple(actual.shape)}, wanted {tuple(truth.shape)}"
    if actual.numel() == 0:
        return
    ratio = excess(actual, truth, bound)
    worst = int(ratio.argmax())
    index = tuple(int(i) for i in torch.unravel_index(torch.tensor(worst), actual.shape))
    assert ratio.flatten()[worst] <= 1, (
        f"{what}: {int((ratio > 1).sum())} of {actual.numel()} elements out of bound; worst at {index}: "
        f"{actual[index].item()!r}, wanted {truth[index].item()!r}, {ratio[index].item():.3g} times the bound"
    )
