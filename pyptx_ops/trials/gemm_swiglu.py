"""Problems for each GEMM config with SwiGLU: as those without, with gate and up as halves and alternating."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from ..kernels.configs import GemmConfig
from ..ops.gemm_swiglu import gemm_swiglu
from ..ops.grouped_gemm_swiglu import grouped_gemm_swiglu
from .bounds import gemm_swiglu_excess, grouped_gemm_swiglu_excess
from .forcing import forced
from .gemm import GROUPS, GemmTrial, fit, ring

__all__ = ["GemmSwigluTrial", "gemm_swiglu_trials"]


@dataclass(frozen=True)
class GemmSwigluTrial(GemmTrial):
    """columns: of the weights, two for each of the output."""

    interleaved: bool = False

    @cached_property
    def what(self) -> str:
        return super().what + (" interleaved" if self.interleaved else "")

    def run(self, inputs: dict[str, Tensor | None]) -> dict[str, Tensor]:
        """On tensors of any device."""
        a, w13, bias, offs = inputs.values()
        assert a is not None and w13 is not None
        with forced(self.config, self.workers):
            if offs is None:
                return {"out": gemm_swiglu(a, w13, bias, self.interleaved)}
            return {"out": grouped_gemm_swiglu(a, w13, offs, bias, self.interleaved)}

    def excess(self, inputs: dict[str, Tensor | None], outputs: dict[str, Tensor]) -> float:
        a, w13, bias, offs = inputs.values()
        assert a is not None and w13 is not None
        if offs is None:
            return gemm_swiglu_excess(outputs["out"], a, w13, bias, self.interleaved)
        return grouped_gemm_swiglu_excess(outputs["out"], a, w13, offs, bias, self.interleaved)


def gemm_swiglu_trials(config: GemmConfig) -> Iterator[GemmSwigluTrial]:
    """The first one is the smallest."""
    yield from _grouped(config) if config.grouped else _plain(config)


def _plain(config: GemmConfig) -> Iterator[GemmSwigluTrial]:
    tokens, weights, deep = config.tokens, config.weights, ring(config)

    def trial(rows: int, columns: int, depth: int, **options: bool | int) -> GemmSwigluTrial:
        return _trial(config, rows, columns, depth, **options)

    yield trial(2, 3, 5, bias=True)
    yield trial(tokens - 1, weights - 1, deep, bias=True, interleaved=True)
    yield trial(tokens, weights, config.tile_k)
    yield trial(tokens + 1, weights + 8, config.tile_k + 1, bias=True)
    yield trial(2 * tokens + 1, weights + 1, config.tile_k * config.split_k - 1, interleaved=True)
    yield trial(1 + tokens // 2, weights - 8, deep, bias=True, workers=1)
    yield trial(2 * tokens + 1, weights + 8, 3 * config.tile_k * config.split_k - 8, bias=True, workers=1)


def _grouped(config: GemmConfig) -> Iterator[GemmSwigluTrial]:
    tokens, weights, deep = config.tokens, config.weights, ring(config)

    def trial(counts: tuple[int, ...], tail: int, columns: int, depth: int, **options: bool | int) -> GemmSwigluTrial:
        return _trial(config, sum(counts) + tail, columns, depth, counts=counts, **options)

    yield trial((0, 0), 4, 3, 5, bias=True)  # no K blocks at all
    yield trial((1, 0, 2), 0, weights - 8, deep, bias=True, interleaved=True)
    yield trial((tokens - 1, 0, 1), 5, weights - 1, config.tile_k, bias=True)
    yield trial((0, tokens, tokens), 0, weights, config.tile_k, interleaved=True)
    yield trial((tokens + 1, 3), 1, weights + 1, 2 * config.tile_k + 8, workers=3)
    yield trial((2, 0, tokens + 1), tokens + 1, weights + 8, config.tile_k - 1, bias=True, workers=1)
    yield trial(tuple(index % 3 for index in range(GROUPS)), 2, 16, 24, bias=True, workers=3)


def _trial(config: GemmConfig, rows: int, outputs: int, depth: int, **options: object) -> GemmSwigluTrial:
    """Where weights are contiguous along N, gate and up are halves at multiples of 16 bytes: others are copied."""
    _, weight_major = GemmTrial(config, 0, 0, 0).majors
    if weight_major == "mn":
        options["interleaved"] = False
    return GemmSwigluTrial(config, rows, 2 * fit(outputs, weight_major), depth, **options)  # type: ignore[arg-type]
