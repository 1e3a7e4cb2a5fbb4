"""How strided tensors are seen as rows: what the memory-bound families share on the host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["ALIGNMENT", "ELEMENT_BYTES", "Rows", "merge_rows", "reciprocal"]

ALIGNMENT = 16  # bytes, of the widest access
ELEMENT_BYTES = 2
UNSPLIT = 2**63 - 1


class Rows(NamedTuple):
    """So many rows; row i is (i // per_outer, i % per_outer), and a tensor has it at strides (outer, inner), in bytes.

    per_outer is UNSPLIT where one stride reaches every row.
    """

    rows: int
    per_outer: int
    strides: tuple[tuple[int, int], ...]

    @property
    def aligned(self) -> bool:
        """Whether every row lies a multiple of 16 bytes after the first one."""
        return not any(stride % ALIGNMENT for pair in self.strides for stride in pair)


def merge_rows(shape: Sequence[int], strides: Sequence[Sequence[int]], most: int = 2) -> Rows | None:
    """The rows (all dimensions but the last) of tensors of one shape; None where that takes more than `most` strides.

    strides: of each tensor, in elements.
    """
    merged: list[tuple[int, list[int]]] = []  # (size, stride of each tensor), innermost first
    for dim in range(len(shape) - 2, -1, -1):
        size, steps = shape[dim], [stride[dim] for stride in strides]
        if size == 1:
            continue
        if merged and all(step == merged[-1][0] * below for step, below in zip(steps, merged[-1][1], strict=True)):
            merged[-1] = (merged[-1][0] * size, merged[-1][1])
        else:
            merged.append((size, steps))
    if len(merged) > most:
        return None
    none = (1, [0] * len(strides))
    (inner, inner_steps), (outer, outer_steps) = [*merged, none, none][:2]
    pairs = zip(outer_steps, inner_steps, strict=True)
    in_bytes = tuple((o * ELEMENT_BYTES, i * ELEMENT_BYTES) for o, i in pairs)
    return Rows(inner * outer, inner if outer > 1 else UNSPLIT, in_bytes)


def reciprocal(divisor: int) -> int:
    """What the kernels' `divide` takes."""
    return (2**64 - 1) // divisor
