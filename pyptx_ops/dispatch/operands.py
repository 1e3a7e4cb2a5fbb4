"""Operands of products as tensor maps can take them.

A tensor map takes a matrix whose one dimension is contiguous, whose pitch is a multiple of 16 bytes and whose address
is too. Any other operand (an odd pitch, a misaligned view, two strides, overlapping rows) is copied first, into rows
along K that are padded to 16 bytes: one more pass over it, never a wrong answer.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..kernels.configs import Layout

__all__ = [
    "ALIGNMENT",
    "CHUNK",
    "DTYPE_NAMES",
    "ELEMENT_BYTES",
    "Matrix",
    "matrix_of",
    "padded_copy",
    "rows_of",
    "tail_of_groups",
]

ALIGNMENT = 16  # bytes, of a tensor map's address and pitches
ELEMENT_BYTES = 2
CHUNK = ALIGNMENT // ELEMENT_BYTES

DTYPE_NAMES = {torch.bfloat16: "bf16", torch.float16: "f16"}


class Matrix(NamedTuple):
    """A matrix of `rows` × K as a tensor map sees it, one per group: sizes and byte strides, innermost first."""

    major: Layout
    tail: tuple[int, ...]


def rows_of(a: Tensor) -> Tensor:
    """(..., K) as (rows, K): a view where the strides allow one."""
    return a if a.dim() == 2 else a.reshape(-1, a.shape[-1])


def matrix_of(tensor: Tensor, *, k_major_only: bool = False) -> tuple[Matrix, bool]:
    """How a tensor map describes a (rows, K) or (groups, rows, K) tensor, or its padded copy; and whether to copy."""
    rows, k = tensor.shape[-2:]
    row_stride, k_stride = tensor.stride()[-2:]
    batch = _batch(tensor)
    if batch is not None and tensor.data_ptr() % ALIGNMENT == 0:
        if (k_stride == 1 or k == 1) and _is_pitch(row_stride, rows, k):
            return Matrix("k", _tail(k, rows, row_stride, batch)), False
        if not k_major_only and (row_stride == 1 or rows == 1) and _is_pitch(k_stride, k, rows):
            return Matrix("mn", _tail(rows, k, k_stride, batch)), False
    pitch = _round_up(k)
    copied = tuple((size, rows * pitch) for size in tensor.shape[:-2])
    return Matrix("k", _tail(k, rows, pitch, copied)), True


def _batch(tensor: Tensor) -> tuple[tuple[int, int], ...] | None:
    """(size, stride) of the group dimension, if there is one; None if no tensor map can take its stride."""
    if tensor.dim() == 2:
        return ()
    size, stride = tensor.shape[0], tensor.stride(0)
    if size == 1:
        return ((1, CHUNK),)
    return ((size, stride),) if stride > 0 and stride % CHUNK == 0 else None


def _is_pitch(stride: int, outer: int, inner: int) -> bool:
    """Whether a tensor map can take this stride of the outer dimension; with one row its stride does not matter."""
    return outer == 1 or (stride >= inner and stride % CHUNK == 0)


def _tail(inner: int, outer: int, pitch: int, batch: tuple[tuple[int, int], ...]) -> tuple[int, ...]:
    """Sizes, then byte strides of all but the innermost dimension."""
    pitch = pitch if outer > 1 else _round_up(inner)
    sizes = (inner, outer, *(size for size, _ in batch))
    return (*sizes, *(stride * ELEMENT_BYTES for stride in (pitch, *(stride for _, stride in batch))))


def padded_copy(tensor: Tensor) -> Tensor:
    """A copy whose rows along K start at multiples of 16 bytes."""
    k = tensor.shape[-1]
    padded = torch.empty((*tensor.shape[:-1], _round_up(k)), dtype=tensor.dtype, device=tensor.device)
    rows = padded[..., :k]
    rows.copy_(tensor)
    return rows


def _round_up(elements: int) -> int:
    return -(-elements // CHUNK) * CHUNK


def tail_of_groups(weights: Matrix) -> tuple[int, ...]:
    """The tail of weights, of which the kernel sees one group or more."""
    if len(weights.tail) != 3:
        return weights.tail
    inner, outer, pitch = weights.tail
    return (inner, outer, 1, pitch, pitch)
