"""Tile schedules of a persistent grid: which tile of the output a CTA works on next.

The output is tokens × weights (rows × columns). Tiles are ordered in bands of BAND token tiles, so that the tiles that
run at the same time share both operands in L2.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..dsl import Kernel, Reg, Var, ptx, special
from ..dsl.macros import FULL_MASK, ceil_div, first_lane, warp_inclusive_sum

__all__ = ["GroupedSchedule", "RaggedKSchedule", "StaticSchedule", "Tile"]

BAND = 8


@dataclass(frozen=True)
class Tile:
    """A tile of the output. Rows row … row_end − 1 of it exist; `row_end` may lie beyond the tile.

    token: first row in the operand.  weight: first column.  group: whose weights.
    k_blocks: 0 where the result is zero whatever the operands hold.
    k_first, k_end: the part of K that the product is over, where it is not all.
    """

    token: Reg
    row: Reg
    row_end: Reg
    weight: Reg
    group: Reg | int
    k_blocks: Reg
    k_first: Reg | int = 0
    k_end: Reg | int = 0


def band_order(index: Reg, token_tiles: Reg, weight_tiles: Reg) -> tuple[Reg, Reg]:
    """(token tile, weight tile) of the index-th tile: down a band of BAND token tiles, then to the next column."""
    band_tiles = weight_tiles * BAND
    band = index // band_tiles
    within = index - band * band_tiles
    first = band * BAND
    height = ptx.min(token_tiles - first, BAND)
    column = within // height
    return first + (within - column * height), column


class StaticSchedule:
    """One problem whose sizes the host knows: tiles are dealt round robin to `workers`, or one to each (None)."""

    def __init__(
        self, k: Kernel, *, worker: Reg, workers: Reg | None, m: Reg, n: Reg, k_blocks: Reg, tokens: int, weights: int
    ):  # fmt: skip
        self.k = k
        self.m = m
        self.k_blocks = k_blocks
        self.tokens, self.weights = tokens, weights
        self.token_tiles = ceil_div(m, tokens)
        self.weight_tiles = ceil_div(n, weights)
        self.total = self.token_tiles * self.weight_tiles
        self.index = k.var("u32", worker)
        self.workers = self.total if workers is None else workers

    def next(self) -> Tile:
        """The next tile; leaves the surrounding k.loop() when there is none."""
        self.k.break_(self.index >= self.total)
        token, weight = band_order(self.index, self.token_tiles, self.weight_tiles)
        self.index += self.workers
        row = token * self.tokens
        return Tile(row, row, self.m, weight * self.weights, 0, self.k_blocks)


class GroupedSchedule:
    """Ragged groups of tokens given by `offs` (cumulative ends, on the device); each group has weights of its own.

    A warp looks at 32 groups at once: lane i holds group base + i, its rows and the tiles up to and including it. Every
    warp keeps the same state, so nothing is passed between warps. The rows past the last group count as one more group
    that has no weights: its tiles are zero. Ends are clamped to ascend within 0 … m, so bad offsets stay in bounds.
    """

    def __init__(
        self, k: Kernel, *, worker: Reg, workers: Reg, m: Reg, n: Reg, k_blocks: Reg, offs: Reg, groups: Reg,
        tokens: int, weights: int,
    ):  # fmt: skip
        self.k = k
        self.m, self.k_blocks, self.offs, self.groups = m, k_blocks, offs, groups
        self.tokens, self.weights = tokens, weights
        self.weight_tiles = ceil_div(n, weights)
        self.index = k.var("u32", worker)
        self.workers = workers
        self.lane = ptx.mov(special("laneid"), type="u32")
        self.first_group = k.var("u32", 0)
        self.tiles_before = k.var("u32", 0)
        self.start, self.end = k.var("u32", 0), k.var("u32", 0)
        self.tiles_through = k.var("u32", 0)
        self._look()

    def next(self) -> Tile:
        """The next tile; leaves the surrounding k.loop() when there is none."""
        k = self.k
        done = k.label("NO_TILE")
        found = k.label("FOUND")
        again = k.label("LOOK")
        k.place(again)
        inside = self.index < self.tiles_before + self.tiles_through
        lane = k.var("u32", first_lane(inside))
        k.branch(found, lane < 32)
        self.tiles_before += self._from_lane(self.tiles_through, 31)
        self.first_group += 32
        k.branch(done, self.first_group > self.groups)
        self._look()
        k.branch(again)
        k.place(done)
        k.break_()
        k.place(found)
        start, end = self._from_lane(self.start, lane), self._from_lane(self.end, lane)
        token_tiles = ceil_div(end - start, self.tokens)
        through = self.tiles_before + self._from_lane(self.tiles_through, lane)
        within = self.index - (through - token_tiles * self.weight_tiles)
        token, weight = band_order(within, token_tiles, self.weight_tiles)
        group = self.first_group + lane
        k_blocks = ptx.selp(self.k_blocks, 0, group < self.groups)
        self.index += self.workers
        row = start + token * self.tokens
        return Tile(row, row, end, weight * self.weights, group, k_blocks)

    def _look(self) -> None:
        """Fill the lanes with groups first_group … first_group + 31."""
        k = self.k
        group = self.first_group + self.lane
        self.start.set(self._start_of(group))
        self.end.set(self.m)
        with k.if_(group < self.groups):
            self.end.set(self._end_of(group))
        ptx.max(self.end, self.start, type="u32", out=self.end)
        rows = self.end - self.start
        tiles = ptx.selp(ceil_div(rows, self.tokens) * self.weight_tiles, 0, group <= self.groups)
        self.tiles_through.set(warp_inclusive_sum(tiles, self.lane))

    def _start_of(self, group: Reg) -> Reg:
        """Where a group starts: the end of the one before."""
        start: Var = self.k.var("u32", 0)
        inside = (group > 0) & (group <= self.groups)
        with self.k.if_(inside):
            start.set(self._end_of(group - 1))
        return start

    def _end_of(self, group: Reg) -> Reg:
        end = ptx.ld(self.offs + ptx.mul.wide(group, 4), space="global", type="s32")
        return ptx.min(ptx.max(end, 0), self.m.as_type("s32")).as_type("u32")

    def _from_lane(self, value: Reg, lane: Reg | int) -> Reg:
        return ptx.shfl(value, lane, 31, FULL_MASK, mode="idx").as_type("u32")


class RaggedKSchedule:
    """A product of m × n for each group, over the part of K that `offs` gives it; they lie one below the other.

    All groups have as many tiles, so a tile's number tells its group. The ends of the next tile's group are loaded
    while this tile is worked on, and clamped when it is taken. An empty group's products are zero.
    """

    def __init__(
        self, k: Kernel, *, worker: Reg, workers: Reg, m: Reg, n: Reg, depth: Reg, offs: Reg, groups: Reg,
        tokens: int, weights: int, tile_k: int,
    ):  # fmt: skip
        self.k = k
        self.m, self.depth, self.offs = m, depth, offs
        self.tokens, self.weights, self.tile_k = tokens, weights, tile_k
        self.token_tiles, self.weight_tiles = ceil_div(m, tokens), ceil_div(n, weights)
        self.per_group = self.token_tiles * self.weight_tiles
        self.total = self.per_group * groups
        self.index = k.var("u32", worker)
        self.workers = workers
        self.group = k.var("u32", 0)
        self.first, self.end = k.var("s32", 0), k.var("s32", 0)  # as they stand in `offs`
        self._look()

    def next(self) -> Tile:
        """The next tile; leaves the surrounding k.loop() when there is none."""
        self.k.break_(self.index >= self.total)
        group = ptx.mov(self.group, type="u32")
        first = self._clamped(self.first)
        end = ptx.max(self._clamped(self.end), first, type="u32")
        token, weight = band_order(self.index - group * self.per_group, self.token_tiles, self.weight_tiles)
        self.index += self.workers
        self._look()
        row, above = token * self.tokens, group * self.m
        k_blocks = ceil_div(end - first, self.tile_k)
        return Tile(row, above + row, above + self.m, weight * self.weights, group, k_blocks, first, end)

    def _look(self) -> None:
        """Load where the group of the next tile starts and ends."""
        self.group.set(self.index // self.per_group)
        inside = self.index < self.total
        address = self.offs + ptx.mul.wide(self.group, 4)
        self.first.set(0)
        ptx.ld(address.at(-4), space="global", type="s32", out=self.first, pred=inside & (self.group > 0))
        ptx.ld(address, space="global", type="s32", out=self.end, pred=inside)

    def _clamped(self, end: Reg) -> Reg:
        return ptx.min(ptx.max(end, 0), self.depth.as_type("s32")).as_type("u32")
