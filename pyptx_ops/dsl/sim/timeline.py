"""A picture of what a launch did: the trace events that Perfetto (ui.perfetto.dev) and chrome://tracing show.

Each CTA is a process; its tracks are its warps, its copies, and the wgmma groups of each warp. A slice of a warp says
that it runs, or what it waits for; one of a copy or a group lasts from its issue to its completion. Time is logical:
the number of warp instructions that the machine has executed, one after the other, in the order of the run's policy.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator
from typing import Any, NamedTuple

from .loader import Program

__all__ = ["Timeline"]

LOGICAL = "logical time: one microsecond stands for one warp instruction executed by the simulator, not for GPU time"
RUN, WAIT, LOAD, STORE, WGMMA = range(5)
KINDS = ("run", "wait", "load", "store", "wgmma")
WAITS = (  # in the order of the core's enumeration
    "", "waits for mbarrier +{address}, parity {number}", "waits at barrier {address}", "waits at the cluster barrier",
    "waits for lanes of its warp", "waits for lanes of its warp", "waits for registers", "waits for its bulk copies",
    "waits for its copies of elements",
)  # fmt: skip


class Event(NamedTuple):
    """As the core tells it: times in warp instructions of the launch, the line in the PTX."""

    kind: int
    cta: int
    warp: int
    begin: int
    end: int
    line: int
    what: int
    address: int
    number: int

    @property
    def track(self) -> str:
        if self.kind in (LOAD, STORE):
            return "copies"
        return f"warp {self.warp}" if self.kind in (RUN, WAIT) else f"wgmma of warp {self.warp}"

    @property
    def name(self) -> str:
        if self.kind == RUN:
            return "runs"
        if self.kind == WAIT:
            return WAITS[self.what].format(address=self.address, number=self.number)
        if self.kind == WGMMA:
            return f"wgmma group up to {self.number}"
        return f"{KINDS[self.kind]} of {self.number} bytes at +{self.address}"


class Timeline:
    """The launches of a run, one after the other."""

    def __init__(self) -> None:
        self.slices: list[dict[str, Any]] = []
        self.names: list[dict[str, Any]] = []
        self._launches = self._processes = self._now = 0

    def add(self, program: Program, grid: tuple[int, int, int], events: bytes, executed: int) -> None:
        """events: the core's, of one launch."""
        words = array("q", events)
        width = len(Event._fields)
        by_cta: dict[int, list[Event]] = {}
        for start in range(0, len(words), width):
            event = Event(*words[start : start + width])
            by_cta.setdefault(event.cta, []).append(event)
        for cta, those in sorted(by_cta.items()):
            place = (cta % grid[0], cta // grid[0] % grid[1], cta // grid[0] // grid[1])
            self._add_cta(program, f"launch {self._launches}: {program.name}, CTA {place}", those)
        self._launches += 1
        self._now += executed

    def _add_cta(self, program: Program, name: str, events: list[Event]) -> None:
        process, thread = self._processes, 0
        self._processes += 1
        self._name("process_name", name, process)
        tracks: dict[str, list[Event]] = {}
        for event in events:
            tracks.setdefault(event.track, []).append(event)
        for track in sorted(tracks, key=lambda text: (text.rpartition(" ")[0], len(text), text)):
            for number, lane in enumerate(lanes(tracks[track])):
                self._name("thread_name", track if number == 0 else f"{track} ({number + 1})", process, thread)
                self.slices += [self._slice(program, event, process, thread) for event in lane]
                thread += 1

    def _name(self, kind: str, name: str, process: int, thread: int = 0) -> None:
        self.names.append({"ph": "M", "name": kind, "pid": process, "tid": thread, "args": {"name": name}})

    def _slice(self, program: Program, event: Event, process: int, thread: int) -> dict[str, Any]:
        args: dict[str, Any] = {}
        if event.line:
            location = program.locations.get(event.line)
            args = {"ptx": f"line {event.line}: {program.lines.get(event.line, '?')}"}
            if location is not None:
                args["python"] = f"{location.file}:{location.line}"
        return {
            "ph": "X", "name": event.name, "cat": KINDS[event.kind], "pid": process, "tid": thread,
            "ts": self._now + event.begin, "dur": length(event), "args": args,
        }  # fmt: skip

    def json(self) -> str:
        """The whole file."""
        document = {"traceEvents": self.names + self.slices, "displayTimeUnit": "ms", "otherData": {"time": LOGICAL}}
        return json.dumps(document)


def length(event: Event) -> int:
    return max(event.end - event.begin, 1)


def lanes(events: list[Event]) -> Iterator[list[Event]]:
    """The events of a track in rows within which none overlap."""
    rows: list[list[Event]] = []
    ends: list[int] = []
    for event in sorted(events, key=lambda event: (event.begin, event.end)):
        row = next((i for i, end in enumerate(ends) if end <= event.begin), len(rows))
        if row == len(rows):
            rows.append([])
            ends.append(0)
        rows[row].append(event)
        ends[row] = event.begin + length(event)
    yield from rows
