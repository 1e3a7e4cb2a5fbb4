"""Inputs that are the same bits on every machine and with every version of torch."""

from __future__ import annotations

import ctypes
import hashlib
import random
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

__all__ = ["DTYPES", "Source", "bits", "digest", "moved"]

DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16}
ADDENDS = 4


class Source:
    """Numbers drawn from a name and a seed."""

    def __init__(self, name: str, seed: int):
        self._random = random.Random(f"{name} {seed}")

    def numbers(self, shape: Sequence[int], dtype: torch.dtype, major: str = "k") -> Tensor:
        """About normal, of standard deviation 1.15: sums of 16-bit integers, which fp32 holds, rounded once to `dtype`.

        major: "mn" where memory holds the transpose of the last two dimensions.
        """
        if major == "mn":
            *outer, rows, columns = shape
            return self.numbers((*outer, columns, rows), dtype).transpose(-1, -2)
        count = torch.Size(shape).numel()
        if count == 0:
            return torch.empty(*shape, dtype=dtype)
        raw = bytearray(self._random.randbytes(2 * ADDENDS * count))
        addends = torch.frombuffer(raw, dtype=torch.int16).view(count, ADDENDS)
        return (addends.sum(1, dtype=torch.int32).float() * 2.0**-15).to(dtype).view(*shape)


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
