"""Which SwiGLU config a problem gets: a pure function of its layout."""

from __future__ import annotations

from dataclasses import dataclass

from ...configs import SwigluConfig

__all__ = ["WIDTH", "SwigluProblem", "configs", "grid", "select"]

WIDTH = 8  # elements of a 16-byte access
DTYPES = ("bf16", "f16")
UNROLL = {"rows": 2, "pairs": 2, "strided": 8}
UNROLL_BACKWARD = {**UNROLL, "strided": 4}  # 8 would take more than 64 registers


@dataclass(frozen=True)
class SwigluProblem:
    """Rows of `columns` elements. interleaved: gate and up alternate in one tensor.

    aligned: operands are contiguous along the columns, and every row of each starts at a multiple of 16 bytes.
    """

    columns: int
    dtype: str
    interleaved: bool
    aligned: bool
    backward: bool = False


def configs() -> tuple[SwigluConfig, ...]:
    """Every config that `select` can return."""
    return tuple(
        SwigluConfig(dtype, layout, unroll, backward)  # type: ignore[arg-type]
        for backward in (False, True)
        for dtype in DTYPES
        for layout, unroll in (UNROLL_BACKWARD if backward else UNROLL).items()
    )


def select(problem: SwigluProblem) -> SwigluConfig:
    """Chunks of 16 bytes where everything is aligned, else single elements."""
    layout = "strided"
    if problem.aligned and problem.columns % WIDTH == 0:
        layout = "pairs" if problem.interleaved else "rows"
    unroll = (UNROLL_BACKWARD if problem.backward else UNROLL)[layout]
    return SwigluConfig(problem.dtype, layout, unroll, problem.backward)  # type: ignore[arg-type]


def grid(rows: int, columns: int, config: SwigluConfig) -> int:
    """Blocks to launch: each covers block · unroll chunks of the rows."""
    chunks = rows * (columns // config.width)
    return -(-chunks // (config.block * config.unroll))
