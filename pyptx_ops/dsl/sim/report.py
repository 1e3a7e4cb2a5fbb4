"""Running a program, and what a run that fails says: the kernel's own line, the PTX line, and who else was involved."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass

from ... import _sim
from ..types import TensorMapSpec
from .lints import Lints
from .loader import Program
from .places import Place, place_of
from .timeline import Timeline

__all__ = ["POLICIES", "Report", "SimulationError", "map_words", "run"]

POLICIES = ("lazy", "eager", "reverse", "random")
"""When asynchronous copies and wgmma take place: as late as possible and in order, at once, as late as possible and
in reverse, or in an order drawn from the seed."""

MAP_TYPES = {
    "u8": 0, "u16": 1, "u32": 2, "i32": 3, "u64": 4, "i64": 5, "f16": 6, "f32": 7, "f32_ftz": 8, "f64": 9, "bf16": 10,
    "tf32": 11, "tf32_ftz": 12,
}  # fmt: skip
"""Element types of tensor maps by the codes of tensormap.replace."""

OTHERS_SHOWN = 12


@dataclass(frozen=True)
class Report:
    """What went wrong. kind: such as "deadlock".  where: the CTA, warp and lane.  others: who else was involved."""

    kernel: str
    kind: str
    message: str
    where: str
    place: Place | None
    others: tuple[Place, ...]

    def __str__(self) -> str:
        lines = [f"{self.kernel}: {self.kind}: {self.message}"]
        if self.place:
            lines.append(f"  at {self.place}")
        if self.where:
            lines.append(f"  in {self.where}")
        alike: dict[tuple[int, str], list[Place]] = {}  # such as the warps that wait for one barrier
        for other in self.others:
            alike.setdefault((other.line, other.text.partition(": ")[2]), []).append(other)
        for places in list(alike.values())[:OTHERS_SHOWN]:
            more = f" (and {len(places) - 1} more alike)" if len(places) > 1 else ""
            lines += [f"  {places[0].text}{more}", f"    at {places[0]}"]
        if len(alike) > OTHERS_SHOWN:
            lines.append(f"  and {len(alike) - OTHERS_SHOWN} others")
        return "\n".join(lines)


class SimulationError(RuntimeError):
    """A kernel did what it must not do; `report` says what and where."""

    def __init__(self, report: Report):
        self.report = report
        super().__init__(str(report))


def map_words(offset: int, spec: TensorMapSpec, values: tuple[int, ...]) -> list[int]:
    """A tensor map as the core takes it. values: address, sizes, strides, as a launch passes them."""
    rank = spec.rank
    address, sizes, strides = values[0], values[1 : 1 + rank], values[1 + rank :]
    window = spec.im2col
    mode = [1, *spec.box, *window.lower, *window.upper, *window.steps] if window else [0, *spec.box]
    return [offset, address, rank, MAP_TYPES[spec.dtype], spec.swizzle, spec.oob_nan, *sizes, *strides, *mode]


def run(
    program: Program,
    grid: tuple[int, int, int],
    params: bytes,
    maps: Iterable[int],
    segments: Iterable[tuple[int, int]],
    *,
    fresh: Iterable[tuple[int, int]] = (),
    policy: str = "lazy",
    seed: int = 0,
    limit: int = 0,
    multiprocessors: int = 1,
    resident: int = 0,
    interleave: bool = False,
    timeline: Timeline | None = None,
    lints: Lints | None = None,
) -> int:
    """Run a grid and return how many warp instructions it took. Raises SimulationError.

    params: the parameters as they lie in memory.  maps: `map_words` of each tensor map.
    segments: (address, bytes) of the memory that the kernel may touch.  fresh: of what it writes before it reads it.
    limit: warp instructions after which a loop is taken to be endless; 0 for none.
    multiprocessors: whose room bounds how many clusters run at once, a number that the seed draws.
    resident: that number instead; 0 to draw it.  interleave: lanes of a warp that have diverged take turns.
    timeline, lints: to which the launch is added, also where it ends in a report.
    """
    if policy not in POLICIES:
        raise ValueError(f"policy is one of {', '.join(POLICIES)}, got {policy!r}")
    if multiprocessors < 1 or resident < 0:
        raise ValueError(f"multiprocessors is at least 1 and resident 0, got {multiprocessors} and {resident}")
    touched, unwritten = (array("q", [n for part in parts for n in part]).tobytes() for parts in (segments, fresh))
    executed, problem, events, traffic = _sim.run(
        program.handle, grid, params, array("q", maps).tobytes(), touched, unwritten, POLICIES.index(policy), seed,
        limit, multiprocessors, resident, interleave, timeline is not None, lints is not None,
    )  # fmt: skip
    if timeline is not None:
        timeline.add(program, grid, events, executed)
    if lints is not None:
        lints.add(program, traffic)
    if problem is not None:
        kind, message, line, where, others = problem
        place = place_of(program, line) if line else None
        raise SimulationError(
            Report(program.name, kind, message, where, place, tuple(place_of(program, n, text) for n, text in others))
        )
    return executed
