"""Problems for each GEMM config: around tile edges, with rings that wrap, few K blocks, groups of every kind."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import torch
from torch import Tensor

from ..kernels.configs import GemmConfig
from ..ops.gemm import gemm
from ..ops.grouped_gemm import grouped_gemm
from .bounds import grouped_excess, product_excess, ragged_k_excess
from .forcing import forced
from .inputs import DTYPES, Source, Values

__all__ = ["GROUPS", "GemmTrial", "fit", "gemm_trials", "ring"]

CHUNK = 8  # elements of 16 bytes: what a tensor map wants of a contiguous dimension
GROUPS = 35  # more than the 32 that a warp looks at at once


@dataclass(frozen=True)
class GemmTrial:
    """rows × depth times depth × columns in one config.

    counts: rows of each group, for a grouped config; the rows past the last group hold NaN and come out zero. Or
    its part of the depth, past which there is NaN too.
    wide: the result is fp32.  workers: CTAs that share the tiles of a persistent config.
    values: of the factors.
    """

    config: GemmConfig
    rows: int
    columns: int
    depth: int
    bias: bool = False
    wide: bool = False
    counts: tuple[int, ...] = ()
    workers: int = 2
    values: Values = "normal"

    @property
    def kernel(self) -> str:
        return self.config.name

    @cached_property
    def what(self) -> str:
        shown = str(self.counts) if len(self.counts) <= 4 else f"{len(self.counts)} groups"
        parts = [f"{self.rows}x{self.columns}x{self.depth}", f"groups {shown}" if self.counts else ""]
        parts += ["bias" if self.bias else "", "fp32 out" if self.wide else "", f"{self.workers} workers"]
        return " ".join(filter(None, [*parts, "" if self.values == "normal" else self.values]))

    @property
    def majors(self) -> tuple[str, str]:
        """Of the tokens and the weights."""
        x, y = self.config.x_major, self.config.y_major
        return (y, x) if self.config.swap else (x, y)

    def inputs(self, seed: int) -> dict[str, Tensor | None]:
        source, dtype = Source(self.what, seed), DTYPES[self.config.dtype]
        groups = (len(self.counts),) if self.counts else ()
        token_major, weight_major = self.majors
        matrices = () if self.config.ragged_k else groups
        a = source.numbers((self.rows, self.depth), dtype, token_major, self.values)
        b = source.numbers((*matrices, self.columns, self.depth), dtype, weight_major, self.values).transpose(-1, -2)
        bias = source.numbers((*groups, self.columns), dtype) if self.bias else None
        offs = torch.tensor(list(accumulate(self.counts)), dtype=torch.int32) if self.counts else None
        if self.config.ragged_k:
            a[:, sum(self.counts) :] = b[sum(self.counts) :] = float("nan")
        else:
            a[sum(self.counts) if self.counts else self.rows :] = float("nan")
        return {"a": a, "b": b, "bias": bias, "offs": offs}

    def run(self, inputs: dict[str, Tensor | None]) -> dict[str, Tensor]:
        """On tensors of any device."""
        a, b, bias, offs = inputs.values()
        assert a is not None and b is not None
        out_dtype = torch.float32 if self.wide else None
        with forced(self.config, self.workers):
            if offs is None:
                return {"out": gemm(a, b, bias, out_dtype=out_dtype)}
            return {"out": grouped_gemm(a, b, offs, bias, out_dtype=out_dtype)}

    def excess(self, inputs: dict[str, Tensor | None], outputs: dict[str, Tensor]) -> float:
        a, b, bias, offs = inputs.values()
        assert a is not None and b is not None
        if offs is None:
            return product_excess(outputs["out"], a, b, bias)
        grouped = ragged_k_excess if self.config.ragged_k else grouped_excess
        return grouped(outputs["out"], a, b, offs, bias)


def gemm_trials(config: GemmConfig) -> Iterator[GemmTrial]:
    """The first one is the smallest."""
    yield from _ragged_k(config) if config.ragged_k else _grouped(config) if config.grouped else _plain(config)


def _plain(config: GemmConfig) -> Iterator[GemmTrial]:
    tokens, weights, deep = config.tokens, config.weights, ring(config)

    def trial(rows: int, columns: int, depth: int, **options: bool | int) -> GemmTrial:
        sizes = GemmTrial(config, rows, columns, depth)
        rows, columns = (fit(size, major) for size, major in zip((rows, columns), sizes.majors, strict=True))
        return GemmTrial(config, rows, columns, depth, **options)  # type: ignore[arg-type]

    yield trial(2, 3, 5, bias=True)  # a K block: with split K, CTAs that have none
    yield trial(tokens - 1, weights - 1, deep, bias=True)
    yield trial(tokens, weights, config.tile_k, wide=True)
    yield trial(tokens + 1, weights + 8, config.tile_k + 1, bias=True)
    yield trial(2 * tokens + 1, weights + 1, config.tile_k * config.split_k - 1, wide=True)
    yield trial(1 + tokens // 2, weights - 8, deep, wide=True, bias=True, workers=1)
    yield trial(2 * tokens + 1, weights + 8, 3 * config.tile_k * config.split_k - 8, bias=True, workers=1)


def _grouped(config: GemmConfig) -> Iterator[GemmTrial]:
    tokens, weights, deep = config.tokens, config.weights, ring(config)

    def trial(counts: tuple[int, ...], tail: int, columns: int, depth: int, **options: bool | int) -> GemmTrial:
        columns = fit(columns, GemmTrial(config, 0, 0, 0).majors[1])
        return GemmTrial(config, sum(counts) + tail, columns, depth, counts=counts, **options)  # type: ignore[arg-type]

    yield trial((0, 0), 4, 3, 5, bias=True)  # no K blocks at all
    yield trial((1, 0, 2), 0, weights - 8, deep, bias=True)
    yield trial((tokens - 1, 0, 1), 5, weights - 1, config.tile_k, bias=True)
    yield trial((0, tokens, tokens), 0, weights, config.tile_k, wide=True)
    yield trial((tokens + 1, 3), 1, weights + 1, 2 * config.tile_k + 8, wide=True, workers=3)
    yield trial((2, 0, tokens + 1), tokens + 1, weights + 8, config.tile_k - 1, bias=True, workers=1)
    yield trial(tuple(index % 3 for index in range(GROUPS)), 2, 16, 24, bias=True, workers=3)


def _ragged_k(config: GemmConfig) -> Iterator[GemmTrial]:
    rows, columns, block, deep = config.tile_m, config.tile_n, config.tile_k, ring(config)

    def trial(counts: tuple[int, ...], tail: int, rows: int, columns: int, **options: bool | int) -> GemmTrial:
        return GemmTrial(config, rows, columns, sum(counts) + tail, counts=counts, **options)  # type: ignore[arg-type]

    yield trial((0, 3), 2, 2, 3, bias=True)
    yield trial((0, 0), 4, rows, 8, wide=True)  # no K blocks at all
    yield trial((1, 0, deep), 0, rows - 1, columns - 1, bias=True)
    yield trial((block - 1, block, block + 1), 5, rows, columns, wide=True, workers=1)
    yield trial((2 * block + 3, 0, 5), block, rows + 1, 24, bias=True, workers=3)
    yield trial((7, deep - 1), 1, 40, columns + 1, wide=True, bias=True)
    yield trial(tuple(index % 3 for index in range(GROUPS)), 2, 16, 24, bias=True, workers=3)


def ring(config: GemmConfig) -> int:
    """A depth that takes one K block more than the ring has stages."""
    return config.stages * config.split_k * config.tile_k + 24


def fit(size: int, major: str) -> int:
    """The next size whose operand no copy is made of, which would lie along K."""
    return size if major == "k" else -(-size // CHUNK) * CHUNK
