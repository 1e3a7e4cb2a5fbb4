"""The problems that are measured: layer shapes of published models, and squares.

Every case has a `name`, which is its key in the records.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = [
    "GATED", "GATED_EXPERTS", "GEMM", "GROUPED", "NORM", "SWIGLU", "GemmCase", "GroupedCase", "NormCase", "SwigluCase",
]  # fmt: skip


@dataclass(frozen=True)
class GemmCase:
    """a (m, k) times b (k, n). layout: N or T for each operand, T meaning that memory holds its transpose."""

    m: int
    n: int
    k: int
    layout: str = "NT"

    @property
    def name(self) -> str:
        return f"M{self.m} N{self.n} K{self.k} {self.layout}"


@dataclass(frozen=True)
class GroupedCase:
    """rows of tokens shared out among `groups` experts with weights (n, k) each.

    skew: 0 gives every expert the same count; s > 0 draws counts from a Zipf law with exponent s.
    """

    model: str
    groups: int
    rows: int
    n: int
    k: int
    skew: float

    @property
    def name(self) -> str:
        return f"{self.model} E{self.groups} M{self.rows} N{self.n} K{self.k} skew{self.skew:g}"

    def counts(self) -> Tensor:
        """Rows of each expert, (groups,) int64; the same for the same case on every machine."""
        if self.skew == 0:
            extra = (torch.arange(self.groups) < self.rows % self.groups).long()
            return torch.full((self.groups,), self.rows // self.groups) + extra
        generator = torch.Generator().manual_seed(zlib.crc32(self.name.encode()))
        weight = torch.arange(1, self.groups + 1).double() ** -self.skew
        weight = weight[torch.randperm(self.groups, generator=generator)]
        drawn = torch.multinomial(weight / weight.sum(), self.rows, replacement=True, generator=generator)
        return torch.bincount(drawn, minlength=self.groups)


@dataclass(frozen=True)
class NormCase:
    """x is (rows, hidden)."""

    rows: int
    hidden: int

    @property
    def name(self) -> str:
        return f"{self.rows}x{self.hidden}"


@dataclass(frozen=True)
class SwigluCase:
    """gate and up are (rows, width)."""

    rows: int
    width: int

    @property
    def name(self) -> str:
        return f"{self.rows}x{self.width}"


SQUARES = (1024, 2048, 4096, 6144, 8192, 16384)
LAYER_TOKENS = (1, 16, 64, 128, 256, 512, 2048, 8192)
LAYERS = ((6144, 4096), (28672, 4096), (4096, 14336))  # (n, k) of an 8 B model: qkv, up and gate, down

GEMM = (
    *(GemmCase(size, size, size) for size in SQUARES),
    *(GemmCase(m, n, k) for m in LAYER_TOKENS for n, k in LAYERS),
    GemmCase(4096, 57344, 8192),
    GemmCase(4096, 8192, 28672),
    GemmCase(4096, 2112, 7168),
    GemmCase(4096, 7168, 2048),
    GemmCase(4096, 129280, 7168),
)

EXPERTS = (
    ("mixtral", 8, 28672, 4096),
    ("mixtral", 8, 4096, 14336),
    ("qwen3-30b", 128, 1536, 2048),
    ("qwen3-30b", 128, 2048, 768),
    ("dsv3-ep8", 32, 4096, 7168),
    ("dsv3-ep8", 32, 7168, 2048),
)

GROUPED = tuple(
    GroupedCase(model, groups, rows, n, k, skew)
    for model, groups, n, k in EXPERTS
    for rows in (8 * groups, 4096, 32768)
    for skew in (0.0, 1.0)
)

GATED = (
    *(GemmCase(m, 28672, 4096) for m in LAYER_TOKENS if m != 256),
    GemmCase(4096, 28672, 4096),
    GemmCase(4096, 6144, 2048),
    GemmCase(4096, 4096, 7168),
    GemmCase(8192, 57344, 8192),
)  # up projections: gate and up are halves of n

GATED_EXPERTS = tuple(
    case for case in GROUPED if (case.model, case.n) in (("mixtral", 28672), ("qwen3-30b", 1536), ("dsv3-ep8", 4096))
)

NORM = tuple(
    NormCase(rows, hidden)
    for rows, hidden in (
        (1, 4096), (128, 4096), (4096, 2048), (4096, 4096), (16384, 4096), (8192, 7168), (8192, 8192), (4096, 16384),
        (2048, 65536),
    )
)  # fmt: skip

SWIGLU = tuple(
    SwigluCase(rows, width)
    for rows, width in (
        (1, 14336), (128, 14336), (4096, 2048), (4096, 14336), (16384, 14336), (8192, 768), (4096, 28672),
    )
)  # fmt: skip
