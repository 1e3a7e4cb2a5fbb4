"""Inputs that are the same bits on every machine and with every version of torch."""

from __future__ import annotations

import ctypes
import hashlib
import random
from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor

__all__ = ["DTYPES", "Source", "Values", "bits", "digest", "moved"]

DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16}
ADDENDS = 4
SPREAD, LEAST = 21, 16  # "spread" multiplies by 2 ** -16 … 2 ** 4
SPECIALS = {  # bits of: infinity, -infinity, NaN, the largest; 0, -0, the smallest subnormals, the largest, normals
    torch.bfloat16: ((0x7F80, 0xFF80, 0x7FC0, 0x7F7F), (0, 0x8000, 1, 0x8001, 0x7F, 0x80, 0x8080)),
    torch.float16: ((0x7C00, 0xFC00, 0x7E00, 0x7BFF), (0, 0x8000, 1, 0x8001, 0x3FF, 0x400, 0x8400)),
}
Values = Literal["normal", "spread", "special"]


class Source:
    """Numbers drawn from a name and a seed."""

    def __init__(self, name: str, seed: int):
        self._random = random.Random(f"{name} {seed}")

    def numbers(self, shape: Sequence[int], dtype: torch.dtype, major: str = "k", values: Values = "normal") -> Tensor:
        """Random numbers.

        major: "mn" where memory holds the transpose of the last two dimensions.
        values: "normal": about so, of standard deviation 1.15: sums of 16-bit integers, which fp32 holds, rounded once
        to `dtype`. "spread": those times powers of two. "special": among those infinities, NaN, the largest number,
        zeros and subnormal numbers (of 16-bit dtypes).
        """
        if major == "mn":
            *outer, rows, columns = shape
            return self.numbers((*outer, columns, rows), dtype, "k", values).transpose(-1, -2)
        count = torch.Size(shape).numel()
        if count == 0:
            return torch.empty(*shape, dtype=dtype)
        wide = self._integers(ADDENDS * count).view(count, ADDENDS).sum(1, dtype=torch.int32).float() * 2.0**-15
        if values == "spread":
            wide = torch.ldexp(wide, self._integers(count) % SPREAD - LEAST)
        numbers = wide.to(dtype)
        if values == "special":
            draw = self._integers(count) & 0xFFF
            table = _specials(dtype)
            numbers = torch.where(draw < len(table), table[draw % len(table)], numbers)
        return numbers.view(*shape)

    def _integers(self, count: int) -> Tensor:
        return torch.frombuffer(bytearray(self._random.randbytes(2 * count)), dtype=torch.int16).int()


def _specials(dtype: torch.dtype) -> Tensor:
    """By how often each shall be drawn: what makes results infinite or NaN seldom, the others often."""
    rare, often = SPECIALS[dtype]
    patterns = torch.tensor([*rare, *often * 30], dtype=torch.int32).to(torch.int16)
    return patterns.view(dtype)


def moved(inputs: Mapping[str, Tensor | None], device: str) -> dict[str, Tensor | None]:
    """Copies with the same strides and alignment, on another device."""

    def copy(tensor: Tensor) -> Tensor:
        memory = torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage())
        return memory.to(device, copy=True).as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())

    return {name: None if tensor is None else copy(tensor) for name, tensor in inputs.items()}


def bits(tensor: Tensor) -> bytes:
    """The elements in order, as memory would hold them contiguously."""
    dense = tensor.detach().cpu().contiguous()
    return ctypes.string_at(dense.data_ptr(), dense.nbytes) if dense.numel() else b""


def digest(tensors: Mapping[str, Tensor | None]) -> str:
    """A hash of tensors: their names, shapes, dtypes and bits."""
    found = hashlib.sha256()
    for name, tensor in tensors.items():
        if tensor is not None:
            found.update(f"{name} {tuple(tensor.shape)} {tensor.dtype};".encode())
            found.update(bits(tensor))
    return found.hexdigest()[:32]
