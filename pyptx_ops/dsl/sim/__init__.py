"""The simulator's Python side: PTX text to a decoded program, launches of it, and reports in the kernel's own lines."""

from __future__ import annotations

from .lints import Access, Lints
from .loader import Program, load
from .report import POLICIES, Report, SimulationError, map_words, run
from .timeline import Timeline

__all__ = [
    "POLICIES", "Access", "Lints", "Program", "Report", "SimulationError", "Timeline", "load", "map_words", "run",
]  # fmt: skip
