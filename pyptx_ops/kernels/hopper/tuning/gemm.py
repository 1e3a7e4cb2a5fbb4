"""Which GEMM config a problem gets: candidates, a cost model of the H200, and the cheapest.

A pure function of the problem. The model knows the tensor cores' rate, the bytes that a stage brings from L2, the bytes
that all tiles bring from memory (fewer SMs draw less), and how the tiles fill the SMs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from ...configs import GemmConfig, Layout

__all__ = ["GemmProblem", "candidates", "configs", "cost", "grid", "select"]

SMS = 132
CLOCK_HZ = 1.75e9
MEMORY_BYTES_PER_CYCLE = 4.2e12 / CLOCK_HZ  # device copy bandwidth of an H200, for the whole chip
L2_BYTES_PER_CYCLE = 60.0  # that one SM gets while all of them load
MACS_PER_CYCLE = 3300  # 16-bit, one SM, as sustained on random data; 4096 at the peak
TILE_OVERHEAD_CYCLES = 1200.0  # fill the ring, drain it, start the epilogue
LAUNCH_CYCLES = 3000.0
STORED_PER_CYCLE = 16  # elements of the output, by one SM
ACTIVATED_PER_CYCLE = 5.3  # the same with SwiGLU: an exponential and a reciprocal at 16 a cycle, then the store
SPLIT_CYCLES = 2000.0  # exchange parts in a cluster: signals, and per element
SPLIT_CYCLES_PER_ELEMENT = 0.3
OVERLAP = 0.85  # how much of the shorter of computing and streaming hides behind the longer

SHAPES = (
    # (swap, tile_n, split_k, blocks_per_sm, stages): as many stages as fit in the shared memory of a resident CTA
    (False, 256, 1, 1, 4), (False, 192, 1, 1, 5), (False, 128, 1, 1, 6),
    (True, 16, 1, 2, 5), (True, 16, 2, 2, 5), (True, 16, 4, 2, 5),
    (True, 32, 1, 2, 5), (True, 32, 4, 2, 4),
    (True, 64, 1, 2, 3), (True, 64, 2, 1, 7), (True, 64, 4, 2, 3),
    (True, 128, 2, 1, 4),
)  # fmt: skip
SWIGLU_SHAPES = (
    (False, 256, 1, 1, 4), (False, 128, 1, 1, 6),
    (True, 16, 1, 2, 5), (True, 16, 4, 2, 5),
    (True, 64, 1, 2, 4), (True, 64, 4, 2, 3),
)  # fmt: skip
RAGGED_K_SHAPES = ((256, 4), (128, 6))  # (tile_n, stages)
DTYPES = ("bf16", "f16")


@dataclass(frozen=True)
class GemmProblem:
    """tokens (m × k) times weights (n × k) transposed; `groups` is 0 for one plain product.

    token_major, weight_major: "k" if the operand is contiguous along K, "mn" if along its rows.
    ragged_k: the groups divide k, not m, and each is a product of m × n; both operands are "mn".
    swiglu: the output is silu(gate) · up, m × n, of as many gates as ups: 2 n weights.
    """

    m: int
    n: int
    k: int
    dtype: str
    token_major: Layout
    weight_major: Layout
    groups: int = 0
    ragged_k: bool = False
    swiglu: bool = False


def configs() -> tuple[GemmConfig, ...]:
    """Every config that `select` can return."""
    majors: tuple[Layout, ...] = ("k", "mn")
    return tuple(
        config
        for dtype in DTYPES
        for token_major in majors
        for weight_major in majors
        for grouped in (False, True)
        for swiglu in (False, True)
        for config in _variants(dtype, token_major, weight_major, grouped, swiglu)
    ) + tuple(config for dtype in DTYPES for config in _ragged_k(dtype))


def _variants(
    dtype: str, token_major: Layout, weight_major: Layout, grouped: bool, swiglu: bool
) -> Iterator[GemmConfig]:
    """The configs for one kind of operands.

    Tokens that are contiguous along M fit neither a swapped tile, which may be narrower than a swizzled row, nor
    groups, which start anywhere: a tensor copy must start at a multiple of 16 bytes along the contiguous dimension.
    With swiglu, where tokens are activations in rows, no config is made for them.
    """
    for swap, tile_n, split, blocks, stages in SWIGLU_SHAPES if swiglu else SHAPES:
        if (grouped and split > 1) or ((swap or grouped or swiglu) and token_major == "mn"):
            continue
        x, y = (weight_major, token_major) if swap else (token_major, weight_major)
        yield GemmConfig(dtype, x, y, 128, tile_n, stages, swap, grouped, split, blocks, swiglu=swiglu)  # type: ignore[arg-type]


def _ragged_k(dtype: str) -> Iterator[GemmConfig]:
    """Groups that divide K start anywhere along it, so both operands are contiguous along the other dimension."""
    for tile_n, stages in RAGGED_K_SHAPES:
        yield GemmConfig(dtype, "mn", "mn", 128, tile_n, stages, grouped=True, ragged_k=True)  # type: ignore[arg-type]


def candidates(problem: GemmProblem) -> tuple[GemmConfig, ...]:
    """Every config that can compute a problem."""
    if problem.ragged_k:
        return tuple(_ragged_k(problem.dtype))
    kind = problem.dtype, problem.token_major, problem.weight_major, problem.groups > 0, problem.swiglu
    return tuple(_variants(*kind))


@lru_cache(maxsize=4096)
def select(problem: GemmProblem, sms: int = SMS) -> GemmConfig:
    """The cheapest config for a problem on a GPU with `sms` multiprocessors."""
    return min(candidates(problem), key=lambda config: cost(problem, config, sms))


def token_tiles(problem: GemmProblem, config: GemmConfig) -> float:
    """Tiles along the tokens. Of ragged groups only their number is known: each ends in a tile that is half full."""
    if problem.ragged_k:
        return problem.groups * -(-problem.m // config.tokens)
    if not problem.groups:
        return -(-problem.m // config.tokens)
    filled = min(problem.groups, problem.m)
    return max(filled, problem.m / config.tokens + 0.5 * filled)


def blocks_along_k(problem: GemmProblem, config: GemmConfig) -> float:
    """K blocks of a tile that a CTA takes; where groups divide K, on average, with one that is half full."""
    if problem.ragged_k:
        return problem.k / problem.groups / config.tile_k + 0.5
    return -(-problem.k // config.tile_k) / config.split_k


def memory_bytes(problem: GemmProblem) -> int:
    """What is read and written at least."""
    m, n, k = problem.m, problem.n, problem.k
    if problem.ragged_k:
        return 2 * (problem.groups * m * n + k * (m + n))
    weights = 2 * n if problem.swiglu else n
    return 2 * (min(max(problem.groups, 1), m) * weights * k + m * (k + n))


def cost(problem: GemmProblem, config: GemmConfig, sms: int = SMS) -> float:
    """Predicted cycles."""
    tiles = token_tiles(problem, config) * -(-problem.n // config.weights)
    k_blocks = blocks_along_k(problem, config)
    stage_bytes = (config.tile_m + config.tile_n) * config.tile_k * 2
    per_block = max(config.tile_m * config.tile_n * config.tile_k / MACS_PER_CYCLE, stage_bytes / L2_BYTES_PER_CYCLE)
    epilogue = config.tokens * config.weights / (ACTIVATED_PER_CYCLE if config.swiglu else STORED_PER_CYCLE)
    units = tiles * config.split_k
    waves = units / sms if problem.groups and units > sms else -(-units // sms)
    overhead = TILE_OVERHEAD_CYCLES / config.blocks_per_sm
    if config.split_k > 1:
        overhead += SPLIT_CYCLES + SPLIT_CYCLES_PER_ELEMENT * config.tile_m * config.tile_n
    busy = waves * (k_blocks * per_block + epilogue + overhead)
    streaming = memory_bytes(problem) / MEMORY_BYTES_PER_CYCLE / min(1.0, units / sms)
    return LAUNCH_CYCLES + max(busy, streaming) + (1 - OVERLAP) * min(busy, streaming)


def grid(problem: GemmProblem, config: GemmConfig, sms: int) -> int:
    """CTAs to launch: one per tile, at most as many as are resident; with split K a cluster per tile."""
    weight_tiles = -(-problem.n // config.weights)
    if problem.ragged_k:
        tiles = problem.groups * -(-problem.m // config.tokens) * weight_tiles
    else:
        tiles = (-(-problem.m // config.tokens) + problem.groups) * weight_tiles
    return tiles * config.split_k if config.split_k > 1 else min(tiles, sms * config.blocks_per_sm)
