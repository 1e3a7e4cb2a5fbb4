"""Plain text tables for the command line."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["table"]


def table(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Columns as wide as their longest cell, columns of numbers to the right, None as a blank."""
    cells = [["" if cell is None else str(cell) for cell in row] for row in rows]
    columns = range(len(headers))
    widths = [max(len(line[c]) for line in [list(headers), *cells]) for c in columns]
    right = [all(_is_number(row[c]) for row in cells) for c in columns]

    def line(row: Sequence[str]) -> str:
        aligned = (row[c].rjust(widths[c]) if right[c] else row[c].ljust(widths[c]) for c in columns)
        return "  ".join(aligned).rstrip()

    return "\n".join([line(headers), line(["-" * width for width in widths]), *map(line, cells)])


def _is_number(cell: str) -> bool:
    return not cell or cell.replace(".", "").replace("e", "").replace("-", "").replace("+", "").isdigit()
