"""Places in a kernel, as reports name them."""

from __future__ import annotations

from dataclasses import dataclass

from .loader import Program

__all__ = ["Place", "place_of"]

PTX_SHOWN = 160  # characters of a line


@dataclass(frozen=True)
class Place:
    """A line of PTX with the Python line that emitted it, and what is said of it."""

    line: int
    ptx: str
    python: str
    text: str = ""

    def __str__(self) -> str:
        shown = f"{self.python}: " if self.python else ""
        ptx = self.ptx if len(self.ptx) <= PTX_SHOWN else self.ptx[:PTX_SHOWN] + " …"
        return f"{shown}PTX line {self.line}: {ptx}"


def place_of(program: Program, line: int, text: str = "") -> Place:
    location = program.locations.get(line)
    python = f"{location.file}:{location.line}" if location else ""
    return Place(line, program.lines.get(line, "?"), python, text)
