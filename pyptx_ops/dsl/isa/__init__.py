"""The instruction table: one row per instruction form, by family."""

from __future__ import annotations

from . import arithmetic, atomic, bits, control, convert, memory, mma, sync, tcgen05, tma
from .row import Row

__all__ = ["ROWS", "Row"]

ROWS: tuple[Row, ...] = (
    *arithmetic.ROWS,
    *bits.ROWS,
    *convert.ROWS,
    *memory.ROWS,
    *atomic.ROWS,
    *control.ROWS,
    *sync.ROWS,
    *tma.ROWS,
    *mma.ROWS,
    *tcgen05.ROWS,
)
