"""Which RMSNorm config a problem gets: a pure function of its width and alignment, never of the number of rows.

So a row's sum is ordered in one way, whatever batch the row is in. Few rows need many threads each to be quick, many
rows need enough loads in flight per SM: rows past 1024 get both from a block each, shorter ones share a block.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from ...configs import RmsNormConfig

__all__ = ["WIDTH", "NormProblem", "configs", "grid", "select"]

WIDTH = 8  # elements of a 16-byte access
MAX_GRID_X = 2**31 - 1

SHAPES = {
    # (width, residual): (threads, vectors, cluster, wide), from short rows to long ones. A sum with a residual stays in
    # fp32, so it takes twice the registers.
    (8, False): ((8, 2), (32, 4), (128, 2), (256, 2), (512, 2), (512, 4), (256, 8, 4, True)),
    (8, True): ((8, 2), (32, 4), (128, 2), (256, 2), (512, 2), (512, 4), (512, 4, 4, True)),
    (1, False): ((32, 8), (256, 16, 1, True)),
    (1, True): ((32, 8), (256, 16, 1, True)),
}
DTYPES = ("bf16", "f16")


@dataclass(frozen=True)
class NormProblem:
    """Rows of `hidden` elements. aligned: every row of every operand starts at a multiple of 16 bytes."""

    hidden: int
    dtype: str
    residual: bool
    aligned: bool


def configs() -> tuple[RmsNormConfig, ...]:
    """Every config that `select` can return."""
    return tuple(
        config for dtype in DTYPES for width, residual in SHAPES for config in _variants(dtype, residual, width)
    )


def _variants(dtype: str, residual: bool, width: int) -> tuple[RmsNormConfig, ...]:
    return tuple(RmsNormConfig(dtype, residual, width, *shape) for shape in SHAPES[width, residual])  # type: ignore[arg-type]


@lru_cache(maxsize=4096)
def select(problem: NormProblem) -> RmsNormConfig:
    """The first config whose registers hold a row, else the one for wide rows."""
    width = WIDTH if problem.aligned and problem.hidden % WIDTH == 0 else 1
    candidates = _variants(problem.dtype, problem.residual, width)
    return next((c for c in candidates if problem.hidden <= c.resident), candidates[-1])


def grid(rows: int, config: RmsNormConfig) -> tuple[int, int]:
    """Blocks to launch, (x, y): a block or cluster per `config.rows` rows, counted along x first."""
    clusters = -(-rows // config.rows)
    x = min(clusters, MAX_GRID_X // config.cluster)
    return x * config.cluster, -(-clusters // x)
