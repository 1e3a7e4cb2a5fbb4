"""Shared-memory matrix descriptors of wgmma: the fields of the 64-bit word, and the two layouts that kernels use."""

from __future__ import annotations

from dataclasses import dataclass

from .instructions import ptx
from .reg import Reg

__all__ = ["MatrixDescriptor", "k_major_128b", "mn_major_128b"]

SWIZZLE_CODE = {0: 0, 128: 1, 64: 2, 32: 3}
ADDRESS_MASK = 0x3FFFF  # the encoding keeps 18 address bits; in a cluster the ones above name the CTA


@dataclass(frozen=True)
class MatrixDescriptor:
    """The constant part of a descriptor, and how far its start moves per K step of one instruction.

    leading, stride: byte offsets (LBO and SBO).  swizzle: bytes.
    k_step: bytes from one instruction's K slice to the next.
    """

    leading: int
    stride: int
    swizzle: int
    k_step: int

    @property
    def constant(self) -> int:
        """All fields but the start address."""
        return SWIZZLE_CODE[self.swizzle] << 62 | (self.stride >> 4) << 32 | (self.leading >> 4) << 16

    def at(self, address: Reg) -> Reg:
        """The descriptor (u64) of a tile that starts at a shared-memory address: four instructions."""
        start = (address & ADDRESS_MASK) >> 4
        wide: Reg = ptx.cvt(start, type="u64", src="u32")
        return wide | self.constant

    def advance(self, descriptor: Reg, step: int) -> Reg:
        """The descriptor of the `step`-th K slice: one `add`, none for the first."""
        return descriptor + (step * self.k_step >> 4) if step else descriptor


def k_major_128b() -> MatrixDescriptor:
    """16-bit elements, rows of 64 along K, 128-byte swizzle: 8-row groups every 1024 bytes."""
    return MatrixDescriptor(leading=16, stride=1024, swizzle=128, k_step=32)


def mn_major_128b(tile_k: int) -> MatrixDescriptor:
    """16-bit elements, blocks of 64 along M or N that are `tile_k` deep, 128-byte swizzle."""
    return MatrixDescriptor(leading=tile_k * 128, stride=1024, swizzle=128, k_step=16 * 128)
