"""From wgmma accumulators to rows of the output: bias, rounding, and stores of 16 bytes where the row pitch allows.

Accumulator register i of a thread holds (row, column) of its warp's 16 rows (ISA: wgmma D fragment):
    row = lane / 4 + 8 · ((i / 2) mod 2),   column = 8 · (i / 4) + 2 · (lane mod 4) + i mod 2
Rounded pairs go through shared memory by stmatrix, so that lanes then hold 8 neighbouring elements of an output row.
The 16-byte chunks of a 128-byte staging row are XORed with the row's low bits: no bank conflicts either way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...dsl import Kernel, Pred, Reg, RegArray, SharedPlan, ptx, special
from ...dsl.macros import FULL_MASK
from ..configs import GemmConfig
from ..schedule import Tile

if TYPE_CHECKING:
    from .gemm import Arguments

__all__ = ["Epilogue", "SplitEpilogue"]

CHUNK = 8  # elements of 16 bytes
STAGING_ROW = 128  # bytes: 64 elements
CONSUMER_BARRIER = 1


class Output:
    """Where results go: out[row, column] of an m × n row-major matrix, and the bias that is added first."""

    def __init__(self, config: GemmConfig, args: Arguments):
        self.dtype = config.dtype
        self.pair = config.dtype + "x2"
        self.args = args
        self.n = args.n
        self.vectors = (args.n & (CHUNK - 1)) == 0  # a row pitch of whole 16-byte chunks
        self.has_bias = args.bias != 0

    def address(self, row: Reg, column: Reg, element_bytes: int) -> Reg:
        """The address of out[row, column]."""
        index = ptx.mul.wide(row, self.n) + ptx.cvt(column, type="u64", src="u32")
        return self.args.out + (index << (element_bytes.bit_length() - 1))

    def takes_bias(self, tile: Tile) -> Pred:
        """There is a bias, and the tile belongs to a group: the rows past the last one stay zero."""
        if self.args.groups is None or not isinstance(tile.group, Reg):
            return self.has_bias
        return self.has_bias & (tile.group < self.args.groups)

    def bias_address(self, tile: Tile, column: Reg) -> Reg:
        """The address of bias[group, column]."""
        index = ptx.cvt(column, type="u64", src="u32")
        if isinstance(tile.group, Reg):
            index = ptx.mul.wide(tile.group, self.n) + index
        return self.args.bias + (index << 1)

    def bias_at(self, address: Reg, offset: int, pred: Pred) -> Reg:
        """One bias element in fp32; zero where `pred` is false."""
        element = ptx.mov(0, type="b16")
        ptx.ld(address.at(2 * offset), space="global", nc=True, type="b16", out=element, pred=pred)
        return ptx.cvt(element, type="f32", src=self.dtype)

    def pack(self, low: Reg, high: Reg) -> Reg:
        """Two fp32 rounded to nearest even, the first in the low half."""
        return ptx.cvt.pack(high, low, type=self.pair, rnd="rn")

    def store_chunk(self, k: Kernel, row: Reg, end: Reg, column: Reg, words: tuple[Reg, ...]) -> None:
        """out[row, column … column + 7] = the eight elements of `words`, as far as the matrix goes."""
        with k.if_((row < end) & (column < self.n)):
            address = self.address(row, column, 2)
            with k.if_(self.vectors):
                ptx.st(address, words, space="global", vec="v4", type="b32")
            with k.else_():
                left = self.n - column
                for i, word in enumerate(words):
                    ptx.st(address.at(4 * i), word, space="global", type="b16", pred=left > 2 * i)
                    high = word.as_type("u32") >> 16
                    ptx.st(address.at(4 * i + 2), high, space="global", type="b16", pred=left > 2 * i + 1)


class Epilogue:
    """Each warp (or warpgroup, when swapped) stages its part of the tile and writes it row by row."""

    def __init__(self, config: GemmConfig, smem: SharedPlan):
        self.config = config
        self.group_bytes = (config.tile_n if config.swap else 64) * STAGING_ROW
        self.staging = smem.array("staging", config.consumers * self.group_bytes, 1024)

    def prepare(self, k: Kernel, args: Arguments, thread: Reg) -> None:
        """What a thread computes once: who it is, and its addresses in the staging rows."""
        self.output = Output(self.config, args)
        self.args = args
        self.lane = thread & 31
        self.warpgroup = thread >> 7
        self.warp = (thread >> 5) & 3
        self.quad_row, self.quad_column = self.lane >> 2, (self.lane & 3) << 1
        staging = self.staging.reg() + self.warpgroup * self.group_bytes
        if self.config.swap:
            thread_in_group = thread & 127
            row, chunk = (self.lane & 7) + ((self.lane >> 4) << 3), self.warp * 2 + ((self.lane >> 3) & 1)
            self._stage_addresses(staging, row, chunk)
            self._read_addresses(staging, thread_in_group >> 3, thread_in_group & 7)
        else:
            staging = staging + self.warp * (16 * STAGING_ROW)
            self._stage_addresses(staging, self.lane & 15, self.lane >> 4)
            self._read_addresses(staging, self.lane >> 3, self.lane & 7)

    def _stage_addresses(self, staging: Reg, row: Reg, chunk: Reg) -> None:
        self.stage_row = staging + row * STAGING_ROW
        self.stage_chunk, self.stage_xor = chunk, row & 7

    def _read_addresses(self, staging: Reg, row: Reg, chunk: Reg) -> None:
        self.read_row, self.read_chunk = row, chunk
        self.read_base = staging + row * STAGING_ROW

    def write(self, k: Kernel, tile: Tile, accumulator: RegArray) -> None:
        """Add the bias, round if asked to, and store what of the tile lies inside the output."""
        with k.if_(self.output.takes_bias(tile)):
            (self._add_bias_to_rows if self.config.swap else self._add_bias_to_columns)(k, tile, accumulator)
        assert self.args.out_f32 is not None
        with k.if_(self.args.out_f32 != 0):
            self._write_f32(k, tile, accumulator)
        with k.else_():
            self.write_rounded(k, tile, accumulator)

    def write_rounded(self, k: Kernel, tile: Tile, values: RegArray) -> None:
        """Round, and store what of the tile lies inside the output."""
        (self._write_swapped if self.config.swap else self._write_rows)(k, tile, values)

    def first_row(self) -> Reg:
        """The wgmma row, within the tile, of this thread's first register."""
        return self.warpgroup * 64 + self.warp * 16 + self.quad_row

    def _add_bias_to_columns(self, k: Kernel, tile: Tile, accumulator: RegArray) -> None:
        column = tile.weight + self.quad_column
        address = self.output.bias_address(tile, column)
        left = self.output.n.as_type("s32") - column.as_type("s32")
        for group in range(self.config.tile_n // 8):
            for odd in (0, 1):
                bias = self.output.bias_at(address, 8 * group + odd, left > 8 * group + odd)
                for i in (4 * group + odd, 4 * group + 2 + odd):
                    ptx.add(accumulator[i], bias, rnd="rn", out=accumulator[i])

    def _add_bias_to_rows(self, k: Kernel, tile: Tile, accumulator: RegArray) -> None:
        row = tile.weight + self.first_row()
        address = self.output.bias_address(tile, row)
        for half in (0, 1):
            bias = self.output.bias_at(address, 8 * half, row + 8 * half < self.output.n)
            for i in range(2 * half, len(accumulator), 4):
                for j in (i, i + 1):
                    ptx.add(accumulator[j], bias, rnd="rn", out=accumulator[j])

    def _write_rows(self, k: Kernel, tile: Tile, accumulator: RegArray) -> None:
        """64 columns at a time: a warp stages 16 rows of 128 bytes and reads them back as four times four rows."""
        first_row = tile.row + self.warpgroup * 64 + self.warp * 16 + self.read_row
        for block in range(self.config.weights // 64):
            part = accumulator[32 * block : 32 * block + 32]
            for step in range(4):
                r = part[8 * step : 8 * step + 8]
                words = [self.output.pack(r[i], r[i + 1]) for i in (0, 2, 4, 6)]
                self._stage(words, self.stage_row, step * 2, trans=False)
            ptx.bar.warp.sync(FULL_MASK)
            column = tile.weight + 64 * block + self.read_chunk * CHUNK
            for step in range(4):
                chunk = self._read(4 * step)
                self.output.store_chunk(k, first_row + 4 * step, tile.row_end, column, chunk)
            ptx.bar.warp.sync(FULL_MASK)

    def _write_swapped(self, k: Kernel, tile: Tile, accumulator: RegArray) -> None:
        """Tokens become staging rows: stmatrix transposes, and the warpgroup reads 16 rows at a time."""
        consumers = 128 * self.config.consumers
        for step in range(self.config.tile_n // 16):
            r = accumulator[8 * step : 8 * step + 8]
            words = [self.output.pack(r[i], r[i + 1]) for i in (0, 2, 4, 6)]
            self._stage(words, self.stage_row + step * 16 * STAGING_ROW if step else self.stage_row, 0, trans=True)
        ptx.bar.sync(CONSUMER_BARRIER, threads=consumers)
        column = tile.weight + self.warpgroup * 64 + self.read_chunk * CHUNK
        for step in range(self.config.tile_n // 16):
            chunk = self._read(16 * step)
            row = tile.row + self.read_row + 16 * step
            self.output.store_chunk(k, row, tile.row_end, column, chunk)
        ptx.bar.sync(CONSUMER_BARRIER, threads=consumers)

    def _stage(self, words: list[Reg], row: Reg, chunk: int, *, trans: bool) -> None:
        swizzled = ((self.stage_chunk + chunk) ^ self.stage_xor) << 4
        ptx.stmatrix(row + swizzled, words, num="x4", trans=trans)

    def _read(self, rows_down: int) -> tuple[Reg, ...]:
        swizzled = (self.read_chunk ^ ((self.read_row + rows_down) & 7)) << 4
        address = self.read_base + swizzled
        return ptx.ld(address.at(rows_down * STAGING_ROW), space="shared::cta", vec="v4", type="b32")

    def _write_f32(self, k: Kernel, tile: Tile, accumulator: RegArray) -> None:
        """Unrounded results, straight from the registers."""
        rows = len(accumulator) // 4
        for half in (0, 1):
            if self.config.swap:
                column = tile.weight + self.first_row() + 8 * half
                for group in range(rows):
                    for odd in (0, 1):
                        row = tile.row + self.quad_column + (8 * group + odd)
                        inside = (row < tile.row_end) & (column < self.output.n)
                        value = accumulator[4 * group + 2 * half + odd]
                        ptx.st(self.output.address(row, column, 4), value, space="global", pred=inside)
                continue
            row = tile.row + self.first_row() + 8 * half
            column = tile.weight + self.quad_column
            left = self.output.n.as_type("s32") - column.as_type("s32")
            with k.if_(row < tile.row_end):
                address = self.output.address(row, column, 4)
                for group in range(rows):
                    for odd in (0, 1):
                        value = accumulator[4 * group + 2 * half + odd]
                        offset = 8 * group + odd
                        ptx.st(address.at(4 * offset), value, space="global", pred=left > offset)


class SplitEpilogue:
    """The CTAs of a cluster hold fp32 parts of one swapped tile; each adds and writes its share of the tokens.

    Every CTA sends the parts of each share to the CTA that owns it. Once the whole cluster has, the owners add the
    parts in rank order. A cluster works on one tile, so the parts are written once.
    """

    def __init__(self, config: GemmConfig, smem: SharedPlan):
        self.config = config
        self.share = config.tile_n // config.split_k  # tokens per CTA
        self.row = config.tile_m + 4  # floats; 4 more keep the fragment's stores off each other's banks
        self.parts = smem.array("parts", config.tile_n * self.row * 4, 16)  # from each rank: share × row

    def prepare(self, k: Kernel, args: Arguments, thread: Reg) -> None:
        """What a thread computes once: its place in the parts."""
        self.output = Output(self.config, args)
        self.args = args
        self.thread = thread
        self.rank = ptx.mov(special("cluster_ctarank"), type="u32")
        lane = thread & 31
        self.token = (lane & 3) << 1
        weight = (thread >> 5) * 16 + (lane >> 2)  # warps 0 … 4 · consumers − 1 hold 16 weights each
        slot = self.rank * self.share
        self.mine = self.parts.reg() + (slot * self.row + weight) * 4

    def write(self, k: Kernel, tile: Tile, accumulator: RegArray) -> None:
        """Send the parts, add those of this CTA's tokens, then the bias; round and store."""
        half = len(accumulator) // self.config.row_blocks
        for block in range(self.config.row_blocks):
            self._send(
                accumulator[half * block : half * block + half], self.mine + 4 * 64 * block if block else self.mine
            )
        ptx.barrier.cluster.arrive()
        ptx.barrier.cluster.wait()
        self._add_and_store(k, tile)

    def _send(self, accumulator: RegArray, mine: Reg) -> None:
        for group in range(len(accumulator) // 4):
            token = self.token + 8 * group
            owner = token >> (self.share.bit_length() - 1)
            place = mine + (token & (self.share - 1)) * (4 * self.row)
            remote = ptx.mapa(place, owner, type="u32", space="shared::cluster")
            for i, value in enumerate(accumulator[4 * group : 4 * group + 4]):
                offset = (i % 2) * self.row + 8 * (i // 2)
                ptx.st(remote.at(4 * offset), value, space="shared::cluster")

    def _add_and_store(self, k: Kernel, tile: Tile) -> None:
        chunks = self.config.weights // CHUNK
        parts = self.parts.reg()
        for item in k.range(self.thread, self.share * chunks, 128 * self.config.consumers):
            token, chunk = item >> (chunks.bit_length() - 1), item & (chunks - 1)
            part = parts + (token * self.row + chunk * CHUNK) * 4
            sums = [self._sums(k, part, block) for block in range(self.config.row_blocks)]
            row = tile.row + self.rank * self.share + token
            self._finish(k, tile, sums, row, tile.weight + chunk * CHUNK)

    def _sums(self, k: Kernel, part: Reg, block: int) -> RegArray:
        """All ranks' parts of a chunk, added, of a block of the tile's weights."""
        sums = k.regs("f32", CHUNK)
        for rank in range(self.config.split_k):
            values: list[Reg] = []
            for half in (0, 4):
                offset = 4 * (rank * self.share * self.row + 64 * block + half)
                values += ptx.ld(part.at(offset), space="shared::cta", vec="v4", type="f32")
            for total, value in zip(sums, values, strict=True):
                if rank == 0:
                    ptx.mov(value, out=total)
                else:
                    ptx.add(total, value, rnd="rn", out=total)
        return sums

    def _finish(self, k: Kernel, tile: Tile, blocks: list[RegArray], row: Reg, column: Reg) -> None:
        """Add the bias to a chunk's sums; round if asked to, and store."""
        (sums,) = blocks
        left = self.output.n.as_type("s32") - column.as_type("s32")
        with k.if_(self.output.takes_bias(tile)):
            address = self.output.bias_address(tile, column)
            for i, total in enumerate(sums):
                ptx.add(total, self.output.bias_at(address, i, left > i), rnd="rn", out=total)
        assert self.args.out_f32 is not None
        with k.if_(self.args.out_f32 != 0):
            inside = row < tile.row_end
            with k.if_(inside):
                address = self.output.address(row, column, 4)
                for i, total in enumerate(sums):
                    ptx.st(address.at(4 * i), total, space="global", pred=left > i)
        with k.else_():
            self.store_rounded(k, tile, sums, row, column)

    def store_rounded(self, k: Kernel, tile: Tile, values: RegArray, row: Reg, column: Reg) -> None:
        """Round a chunk, and store it."""
        words = tuple(self.output.pack(values[i], values[i + 1]) for i in range(0, CHUNK, 2))
        self.output.store_chunk(k, row, tile.row_end, column, words)
