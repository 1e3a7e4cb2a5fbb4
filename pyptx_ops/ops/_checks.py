"""What the ops share in refusing bad input: the good path costs a comparison, the message is made on failure only."""

from __future__ import annotations

from typing import NoReturn

import torch
from torch import Tensor

__all__ = [
    "DTYPES",
    "accumulator",
    "bad_device",
    "bad_dtype",
    "bad_shape",
    "check_out_dtype",
    "check_offs",
    "check_offs_values",
    "check_same_shape",
    "packed",
]

DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64)


def accumulator(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which sums of `dtype` are kept: fp32, or fp64 for fp64."""
    return torch.float64 if dtype is torch.float64 else torch.float32


def packed(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """A new tensor of these values in this dtype, with exactly the contiguous strides that the fakes announce."""
    return tensor.new_empty(tensor.shape, dtype=dtype).copy_(tensor)


def bad_dtype(op: str, name: str, got: torch.dtype, wanted: object) -> NoReturn:
    raise TypeError(f"{op}: {name} has dtype {got}, wanted {wanted}")


def bad_shape(op: str, name: str, tensor: Tensor, wanted: str) -> NoReturn:
    raise ValueError(f"{op}: {name} has shape {tuple(tensor.shape)}, wanted {wanted}")


def bad_device(op: str, name: str, tensor: Tensor, wanted: torch.device) -> NoReturn:
    raise ValueError(f"{op}: {name} is on {tensor.device}, wanted {wanted} like the first argument")


def check_out_dtype(op: str, out_dtype: torch.dtype | None, dtype: torch.dtype) -> None:
    if out_dtype is not None and out_dtype is not dtype and out_dtype is not torch.float32:
        raise TypeError(f"{op}: out_dtype is {out_dtype}, wanted None, the inputs' {dtype}, or torch.float32")


def check_same_shape(op: str, name: str, tensor: Tensor, other_name: str, other: Tensor) -> None:
    """For fakes, where a token count is a symbol that must be asserted, not branched on."""

    def message() -> str:
        return f"{op}: {name} has shape {tuple(tensor.shape)}, wanted {tuple(other.shape)} like {other_name}"

    torch._check_value(tensor.dim() == other.dim(), message)
    for size, wanted in zip(tensor.shape, other.shape, strict=True):
        torch._check_value(size == wanted, message)


def check_offs(op: str, offs: Tensor, device: torch.device) -> None:
    if offs.dtype is not torch.int32:
        bad_dtype(op, "offs", offs.dtype, torch.int32)
    if offs.dim() != 1 or offs.shape[0] == 0:
        bad_shape(op, "offs", offs, "(G,) with G >= 1")
    if offs.device != device:
        bad_device(op, "offs", offs, device)


def check_offs_values(op: str, offs: Tensor, rows: int) -> list[int]:
    """The group ends as integers: for CPU tensors only, where reading them costs no synchronisation."""
    ends: list[int] = offs.tolist()
    previous = 0
    for group, end in enumerate(ends):
        if end < previous:
            what = f"negative: offs[{group}] = {end}" if end < 0 else f"decreasing: offs[{group}] = {end} < {previous}"
            raise ValueError(f"{op}: offs is {what}, wanted cumulative group ends")
        previous = end
    if previous > rows:
        raise ValueError(f"{op}: offs[-1] is {previous}, wanted at most {rows}, the number of rows")
    return ends
