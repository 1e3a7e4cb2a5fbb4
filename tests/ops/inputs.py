"""Tensors that tests are made of."""

from __future__ import annotations

import torch
from torch import Tensor

LOW = (torch.bfloat16, torch.float16)


def randn(*shape: int, device: str, dtype: torch.dtype = torch.float64, grad: bool = False, scale: float = 1.0):
    """Normal numbers, the same on every device."""
    return (torch.randn(shape, dtype=torch.float64) * scale).to(device, dtype).requires_grad_(grad)


def ends(*values: int, device: str) -> Tensor:
    return torch.tensor(values, dtype=torch.int32, device=device)


def relaid(tensor: Tensor, layout: str) -> Tensor:
    """The same values in another layout."""
    if layout == "contiguous":
        return tensor.contiguous()
    if layout == "transposed":
        return tensor.transpose(-1, -2).contiguous().transpose(-1, -2)
    if layout == "unaligned":  # the first element is off by one, rows keep an odd pitch
        wide = torch.nn.functional.pad(tensor, (1, 2), value=float("nan"))
        return wide[..., 1:-2]
    if layout == "every second":
        wide = torch.stack((tensor, torch.full_like(tensor, float("nan"))), -1).flatten(-2)
        return wide[..., ::2]
    raise ValueError(layout)


LAYOUTS = ("contiguous", "transposed", "unaligned", "every second")


def assert_contiguous(tensor: Tensor) -> None:
    """Exactly the strides of a new tensor, sizes of 1 included."""
    assert tensor.stride() == torch.empty(tensor.shape, device="meta").stride()
