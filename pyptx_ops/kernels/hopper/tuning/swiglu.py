"""Which SwiGLU config a problem gets: a pure function of its layout."""

from __future__ import annotations

from dataclasses import dataclass

from ...configs import SwigluConfig

__all__ = ["WIDTH", "SwigluProblem", "configs", "grid", "select"]

WIDTH = 8  # elements of a 16-byte access
DTYPES = ("bf16", "f16")
UNROLL = {"rows": 2, "pairs": 2, "strided": 8}


@dataclass(frozen=True)
class SwigluProblem:
    """Output rows of `columns` elements. interleaved: gate and up alternate in one input.

    aligned: inputs are contiguous along the columns, and every row of every operand starts at a multiple of 16 bytes.
    """

    columns: int
    dtype: str
    interleaved: bool
    aligned: bool


def configs() -> tuple[SwigluConfig, ...]:
    """Every config that `select` can return."""
    return tuple(
        SwigluConfig(dtype, layout, unroll)  # type: ignore[arg-type]
        for dtype in DTYPES
        for layout, unroll in UNROLL.items()
    )


def select(problem: SwigluProblem) -> SwigluConfig:
    """Chunks of 16 bytes where everything is aligned, else single elements."""
    layout = "strided"
    if problem.aligned and problem.columns % WIDTH == 0:
        layout = "pairs" if problem.interleaved else "rows"
    return SwigluConfig(problem.dtype, layout, UNROLL[layout])  # type: ignore[arg-type]


def grid(rows: int, columns: int, config: SwigluConfig) -> int:
    """Blocks to launch: each covers block · unroll chunks of the output."""
    chunks = rows * (columns // config.width)
    return -(-chunks // (config.block * config.unroll))
