"""The instruction table: one row per instruction form, by family."""

from __future__ import annotations

from . import arithmetic, control, memory, mma, sync, tma
from .row import Row

__all__ = ["ROWS", "Row"]

ROWS: tuple[Row, ...] = (
    *arithmetic.ROWS,
    *memory.ROWS,
    *control.ROWS,
    *sync.ROWS,
    *tma.ROWS,
    *mma.ROWS,
)
