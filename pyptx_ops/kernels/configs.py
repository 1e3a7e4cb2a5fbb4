"""Frozen kernel configs: everything about a kernel that is settled when it is traced. Each has a unique `name`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["GemmConfig"]

Layout = Literal["k", "mn"]


@dataclass(frozen=True)
class GemmConfig:
    """A tile GEMM on wgmma: X (tile_m rows, 64 per consumer warpgroup) times Y (tile_n columns).

    dtype: "bf16" or "f16".  x_major, y_major: whether each operand is contiguous along K ("k") or along its rows ("mn").
    swap: X holds the weights and Y the tokens, so the tile is written transposed; for few tokens.
    grouped: tokens are ragged groups given by `offs`, each with weights of its own.
    split_k: CTAs of a cluster that share a tile's K blocks and add their parts through distributed shared memory.
    blocks_per_sm: resident CTAs per SM that registers and shared memory leave room for: 1, or 2 for small tiles.
    """

    dtype: Literal["bf16", "f16"]
    x_major: Layout
    y_major: Layout
    tile_m: int
    tile_n: int
    stages: int
    swap: bool = False
    grouped: bool = False
    split_k: int = 1
    blocks_per_sm: int = 1
    tile_k: int = 64

    @property
    def name(self) -> str:
        kind = "grouped_gemm" if self.grouped else "gemm"
        swap = "_swap" if self.swap else ""
        split = f"_split{self.split_k}" if self.split_k > 1 else ""
        blocks = f"_b{self.blocks_per_sm}" if self.blocks_per_sm > 1 else ""
        tile = f"{self.tile_m}x{self.tile_n}x{self.tile_k}"
        return f"{kind}_{self.dtype}_x{self.x_major}_y{self.y_major}_{tile}_s{self.stages}{swap}{split}{blocks}"

    @property
    def consumers(self) -> int:
        """Consumer warpgroups."""
        return self.tile_m // 64

    @property
    def tokens(self) -> int:
        """Rows of the output that a tile covers."""
        return self.tile_n if self.swap else self.tile_m

    @property
    def weights(self) -> int:
        """Columns of the output that a tile covers."""
        return self.tile_m if self.swap else self.tile_n
