"""Frozen kernel configs: everything about a kernel that is settled when it is traced. Each has a unique `name`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["WARP", "GemmConfig", "RmsNormConfig", "SwigluConfig"]

Layout = Literal["k", "mn"]

WARP = 32


@dataclass(frozen=True)
class GemmConfig:
    """A tile GEMM on wgmma: X (tile_m rows, 64 or 128 per consumer warpgroup) times Y (tile_n columns).

    dtype: "bf16" or "f16".  x_major, y_major: if an operand is contiguous along K ("k") or along its rows ("mn").
    swap: X holds the weights and Y the tokens, so the tile is written transposed; for few tokens.
    grouped: tokens are ragged groups given by `offs`, each with weights of its own.
    ragged_k: with `grouped`, the groups divide K instead, and each is a product of its own.
    swiglu: half of a tile's weights are the gate's, then as many of up, and the output is silu(gate) · up.
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
    ragged_k: bool = False
    swiglu: bool = False

    @property
    def name(self) -> str:
        kind = ("grouped_gemm" if self.grouped else "gemm") + ("_swiglu" if self.swiglu else "")
        swap = "_swap" if self.swap else ""
        split = f"_split{self.split_k}" if self.split_k > 1 else ""
        blocks = f"_b{self.blocks_per_sm}" if self.blocks_per_sm > 1 else ""
        ragged = "_ragged_k" if self.ragged_k else ""
        tile = f"{self.tile_m}x{self.tile_n}x{self.tile_k}_s{self.stages}"
        return f"{kind}_{self.dtype}_x{self.x_major}_y{self.y_major}_{tile}{swap}{split}{blocks}{ragged}"

    @property
    def consumers(self) -> int:
        """Consumer warpgroups."""
        return self.tile_m // (64 * self.row_blocks)

    @property
    def row_blocks(self) -> int:
        """Blocks of 64 rows of X that a warpgroup multiplies: 2, of gate and of up, where X holds both."""
        return 2 if self.swiglu and self.swap else 1

    @property
    def tokens(self) -> int:
        """Rows of the output that a tile covers."""
        return self.tile_n if self.swap else self.tile_m

    @property
    def weights(self) -> int:
        """Columns of the output that a tile covers."""
        return (self.tile_m if self.swap else self.tile_n) // (2 if self.swiglu else 1)


@dataclass(frozen=True)
class RmsNormConfig:
    """A norm over rows, each shared by `threads` threads (a power of two) of each of the `cluster` blocks of a cluster.

    dtype: "bf16" or "f16".  residual: add a second input first, and also write the rounded sum.
    width: elements of one access: 8 (16 bytes, where every address is a multiple of that) or 1.
    vectors: accesses of a thread whose elements stay in registers.
    wide: rows may be longer than that; the rest of a row is read twice.
    """

    dtype: Literal["bf16", "f16"]
    residual: bool
    width: int
    threads: int
    vectors: int
    cluster: int = 1
    wide: bool = False

    @property
    def name(self) -> str:
        kind = "fused_add_rms_norm" if self.residual else "rms_norm"
        cluster = f"_cluster{self.cluster}" if self.cluster > 1 else ""
        wide = "_wide" if self.wide else ""
        return f"{kind}_{self.dtype}_w{self.width}_{self.threads}x{self.vectors}{cluster}{wide}"

    @property
    def team(self) -> int:
        """Threads that share a row."""
        return self.threads * self.cluster

    @property
    def resident(self) -> int:
        """Elements of a row that stay in registers."""
        return self.team * self.vectors * self.width

    @property
    def block(self) -> int:
        """Threads of a block."""
        return self.threads if self.threads > WARP else 256

    @property
    def blocks_per_sm(self) -> int:
        """Resident blocks that registers must allow: 40 a thread, 48 with a residual, 64 where a thread holds much."""
        held = self.vectors * max(self.width // 2, 1)  # words of a row
        threads = 1024 if held > 8 else 1280 if self.residual else 1536
        return threads // self.block

    @property
    def rows(self) -> int:
        """Rows that a block, or a cluster, works on at the same time."""
        return self.block // self.threads


@dataclass(frozen=True)
class SwigluConfig:
    """silu(gate) · up, element by element, or its gradients.

    dtype: "bf16" or "f16".
    layout: "rows": gate and up apart, in rows of 16-byte chunks; "pairs": alternating in one tensor, in such rows;
    "strided": single elements, any strides. Gradients lie as gate and up do.
    unroll: accesses of a thread and operand, all in flight at once.
    """

    dtype: Literal["bf16", "f16"]
    layout: Literal["rows", "pairs", "strided"]
    unroll: int
    backward: bool = False
    block: int = 256

    @property
    def name(self) -> str:
        kind = "swiglu_bwd" if self.backward else "swiglu"
        return f"{kind}_{self.dtype}_{self.layout}_{self.block}x{self.unroll}"

    @property
    def width(self) -> int:
        """Elements of one access of an operand that does not hold pairs."""
        return 1 if self.layout == "strided" else 8
