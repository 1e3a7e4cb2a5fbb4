"""From wgmma accumulators to silu(gate) · up: fp32 sums of both, the bias, the activation, and one rounding.

Half of a tile's weights are the gate's rows and the other half the same rows of up. Where the weights are Y they are
the halves of one wgmma's columns; where they are X a warpgroup multiplies 64 rows of each. Either way the first half of
a thread's accumulator is the gate, and register i of the second half is the up of the same output element: nothing is
exchanged. How gate and up lie in memory is settled by the two tensor maps, so halves and alternating rows are one
kernel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...dsl import Kernel, Pred, Reg, RegArray, ptx
from ..schedule import Tile
from ..swiglu import silu
from .gemm_epilogue import CHUNK, Epilogue, Output, SplitEpilogue

if TYPE_CHECKING:
    from .gemm import Arguments

__all__ = ["SplitSwigluEpilogue", "SwigluEpilogue"]

BIAS_BYTES = 2


def activated(gate: RegArray, up: RegArray) -> RegArray:
    """silu(gate) · up, unrounded; zero where both are."""
    return RegArray([silu(g)[0] * u for g, u in zip(gate, up, strict=True)])


class Biases:
    """The bias of gate and up, from a column of the output on: `step` apart, up's behind the gate's."""

    def __init__(self, output: Output, args: Arguments, tile: Tile, column: Reg):
        assert args.bias_steps is not None
        self.output = output
        self.step, to_up = args.bias_steps
        index = ptx.mul.wide(column, self.step)
        if isinstance(tile.group, Reg):
            index = ptx.mul.wide(tile.group, output.n << 1) + index
        self.gate = args.bias + index * BIAS_BYTES
        self.to_up = ptx.mul.wide(to_up, BIAS_BYTES)

    def add(self, offset: int, inside: Pred, gates: list[Reg], ups: list[Reg]) -> None:
        """Add those of the column `offset` further on, which is `inside` the output, to sums of that column."""
        address = self.gate + ptx.mul.wide(self.step, BIAS_BYTES * offset) if offset else self.gate
        for where, sums in ((address, gates), (address + self.to_up, ups)):
            bias = self.output.bias_at(where, 0, inside)
            for total in sums:
                ptx.add(total, bias, rnd="rn", out=total)


class SwigluEpilogue(Epilogue):
    """Stages and writes activated tiles, which are half as wide as those that were multiplied."""

    def write(self, k: Kernel, tile: Tile, accumulator: RegArray) -> None:
        """Add the bias, activate, round, and store what of the tile lies inside the output."""
        half = len(accumulator) // 2
        gate, up = accumulator[:half], accumulator[half:]
        with k.if_(self.output.takes_bias(tile)):
            self._add_biases(tile, gate, up)
        self.write_rounded(k, tile, activated(gate, up))

    def _add_biases(self, tile: Tile, gate: RegArray, up: RegArray) -> None:
        first = self.first_row() if self.config.swap else self.quad_column
        column = tile.weight + first
        biases = Biases(self.output, self.args, tile, column)
        left = self.output.n.as_type("s32") - column.as_type("s32")
        for offset, registers in self._columns(len(gate)):
            biases.add(offset, left > offset, [gate[i] for i in registers], [up[i] for i in registers])

    def _columns(self, registers: int) -> list[tuple[int, list[int]]]:
        """(offset from a thread's first column, its registers there) of each output column that a thread holds."""
        if self.config.swap:  # rows of the fragment: two, with all tokens of the thread
            return [(8 * half, [i for i in range(registers) if i // 2 % 2 == half]) for half in (0, 1)]
        offsets = ((group, odd) for group in range(registers // 4) for odd in (0, 1))
        return [(8 * group + odd, [4 * group + odd, 4 * group + 2 + odd]) for group, odd in offsets]


class SplitSwigluEpilogue(SplitEpilogue):
    """Parts are added before the activation, gate and up apart."""

    def _finish(self, k: Kernel, tile: Tile, blocks: list[RegArray], row: Reg, column: Reg) -> None:
        gate, up = blocks
        left = self.output.n.as_type("s32") - column.as_type("s32")
        with k.if_(self.output.takes_bias(tile)):
            biases = Biases(self.output, self.args, tile, column)
            for i in range(CHUNK):
                biases.add(i, left > i, [gate[i]], [up[i]])
        self.store_rounded(k, tile, activated(gate, up), row, column)
