"""Rows of 16-bit elements in memory and their values in fp32: what the memory-bound kernels share.

An access covers `width` neighbouring elements: 8 (16 bytes, where every address is a multiple of that) or 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..dsl import Kernel, Pred, Reg, ptx
from ..dsl.macros import FULL_MASK

__all__ = ["ELEMENT_BYTES", "Access", "butterfly_sum", "declare_strides", "divide", "zeros"]

ELEMENT_BYTES = 2
HIGH_HALF = 0xFFFF0000


@dataclass(frozen=True)
class Access:
    """Loads, stores and conversions of `width` elements of `dtype` ("bf16" or "f16").

    They lie in 32-bit words, two to a word, the first in the low half; a single element lies alone.
    """

    dtype: str
    width: int

    @property
    def nbytes(self) -> int:
        return self.width * ELEMENT_BYTES

    @property
    def words(self) -> int:
        return max(self.width // 2, 1)

    def load(self, address: Reg, offset: int, pred: Pred) -> list[Reg]:
        """The words at `address + offset`, past L1: each is read once. Zero where `pred` does not hold."""
        words = zeros(self.words)
        self._load(address, offset, words, pred, l1="L1::no_allocate")
        return words

    def load_kept(self, address: Reg, offset: int, out: Sequence[Reg], pred: Pred) -> None:
        """The words at `address + offset` into `out`, kept in L1: every row reads them and nothing writes them."""
        self._load(address, offset, out, pred, nc=True)

    def _load(self, address: Reg, offset: int, out: Sequence[Reg], pred: Pred, **hints: Any) -> None:
        where = address.at(offset)
        if self.width == 1:
            ptx.ld(where, space="global", type="b16", out=out[0], pred=pred, **hints)
        else:
            ptx.ld(where, space="global", vec=f"v{self.words}", type="b32", out=out, pred=pred, **hints)

    def store(self, address: Reg, offset: int, words: Sequence[Reg], pred: Pred) -> None:
        """The words to `address + offset` where `pred` holds."""
        where = address.at(offset)
        if self.width == 1:
            ptx.st(where, words[0], space="global", type="b16", pred=pred)
        else:
            ptx.st(where, words, space="global", vec=f"v{self.words}", type="b32", pred=pred)

    def unpack(self, words: Sequence[Reg]) -> list[Reg]:
        """The elements in fp32."""
        values = [value for word in words for value in self._halves(word)]
        return values[: self.width]

    def _halves(self, word: Reg) -> tuple[Reg, Reg]:
        if self.dtype == "bf16":  # an fp32 without its low half
            return (word << 16).as_type("f32"), (word & HIGH_HALF).as_type("f32")
        low, high = ptx.mov.unpack(word, type="b32")
        return ptx.cvt(low, type="f32", src="f16"), ptx.cvt(high, type="f32", src="f16")

    def pack(self, values: Sequence[Reg]) -> list[Reg]:
        """fp32 rounded to nearest even, as words."""
        padded: list[Reg | float] = [*values, 0.0] if len(values) % 2 else list(values)
        return [
            ptx.cvt.pack(high, low, type=f"{self.dtype}x2", rnd="rn") for low, high in zip(padded[::2], padded[1::2])
        ]


def zeros(count: int) -> list[Reg]:
    """Words that hold zero."""
    return [ptx.mov(0, type="b32") for _ in range(count)]


def divide(value: Reg, divisor: Reg, reciprocal: Reg) -> tuple[Reg, Reg]:
    """(quotient, remainder) of value < 2^63 by divisor >= 1, u64, with reciprocal = floor((2^64 - 1) / divisor).

    The high half of value · reciprocal is the quotient or one less.
    """
    quotient = ptx.mul.hi(value, reciprocal, type="u64")
    remainder = value - quotient * divisor
    low = remainder >= divisor
    ptx.add(quotient, 1, out=quotient, pred=low)
    ptx.sub(remainder, divisor, out=remainder, pred=low)
    return quotient, remainder


def butterfly_sum(value: Reg, lanes: int) -> Reg:
    """The fp32 sum over each group of `lanes` neighbouring lanes (a power of two), the same bits in all of them."""
    distance = lanes // 2
    while distance:
        other = ptx.shfl(value, distance, 31, FULL_MASK, mode="bfly").as_type("f32")
        value = value + other
        distance //= 2
    return value


def declare_strides(k: Kernel, name: str) -> tuple[Reg, Reg]:
    """Two byte strides of the rows of an operand."""
    return k.param(f"{name}_outer", "i64").as_type("u64"), k.param(f"{name}_inner", "i64").as_type("u64")
