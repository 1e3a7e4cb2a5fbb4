"""How accesses lie in memory: bank conflicts of shared memory, and sectors of global memory that few bytes are used of.

Counted by the core (csrc/sim/lints.cpp) for each load, store and matrix move, at the addresses that a run gave them.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass

from .loader import Program
from .places import Place, place_of

__all__ = ["Access", "Lints"]

KINDS = ("shared", "global")
UNITS = {"shared": "wavefronts", "global": "sectors"}
FIELDS = 5  # of the core's, in the order of Traffic


@dataclass
class Access:
    """What an instruction of a kernel took. kind: "shared" or "global" memory.  runs: how often a warp executed it.
    done: wavefronts of shared memory, or 32-byte sectors of global memory.  least: as few as its lanes could do with.
    """

    kernel: str
    place: Place
    kind: str
    runs: int = 0
    done: int = 0
    least: int = 0

    @property
    def excess(self) -> int:
        return self.done - self.least

    @property
    def ratio(self) -> float:
        return self.done / self.least

    @property
    def unit(self) -> str:
        return UNITS[self.kind]


class Lints:
    """The accesses of all launches of a run."""

    def __init__(self) -> None:
        self._accesses: dict[tuple[str, int, str, str], Access] = {}

    def add(self, program: Program, traffic: bytes) -> None:
        """traffic: the core's, of one launch."""
        words = array("q", traffic)
        for start in range(0, len(words), FIELDS):
            number, line, runs, done, least = words[start : start + FIELDS]
            place, kind = place_of(program, line), KINDS[number]
            key = program.name, line, kind, place.ptx
            access = self._accesses.setdefault(key, Access(program.name, place, kind))
            access.runs += runs
            access.done += done
            access.least += least

    @property
    def accesses(self) -> list[Access]:
        """The worst first: by what they took beyond the least."""
        return sorted(self._accesses.values(), key=lambda access: (-access.excess, access.kernel, access.place.line))
