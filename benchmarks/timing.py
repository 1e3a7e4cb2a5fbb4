"""Device time of several calls side by side.

Calls take turns (A B C A B C …), so that clocks, power and temperature are the same for all of them. Before each call
the L2 is filled with other data and the device is kept busy for a while, so that the host has enqueued the call before
the device gets to it: what is measured is the device's time, not the host's. `bench_overhead` measures the host's.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import torch

__all__ = ["Call", "Clock", "CudaClock", "compiled", "copy_bandwidth", "interleaved"]

Call = Callable[[], object]

FLUSH_BYTES = 256 << 20  # more than 4 times the L2 of an H200
BUSY_CYCLES = 150_000  # about 85 µs: longer than the host needs to enqueue a compiled function
MIN_ROUNDS, MAX_ROUNDS = 5, 60
COPY_ELEMENTS = 1 << 30


class Clock(Protocol):
    """Times calls that take turns."""

    overhead_us: float
    """Time around each timed call that is not measured."""

    def samples(self, calls: Sequence[Call], rounds: int) -> list[list[float]]:
        """Microseconds of every call in every round: one list of `rounds` times per call."""


class CudaClock:
    """CUDA events on the current stream of the current device."""

    overhead_us = 170.0

    def __init__(self) -> None:
        self._flush = torch.empty(FLUSH_BYTES // 4, dtype=torch.int32, device="cuda")

    def prepare(self) -> None:
        """Keeps the device busy and empties its L2."""
        torch.cuda._sleep(BUSY_CYCLES)
        self._flush.zero_()

    def samples(self, calls: Sequence[Call], rounds: int) -> list[list[float]]:
        events: list[list[tuple[torch.cuda.Event, torch.cuda.Event]]] = [[] for _ in calls]
        for _ in range(rounds):
            for call, pairs in zip(calls, events, strict=True):
                start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                self.prepare()
                start.record()
                call()
                end.record()
                pairs.append((start, end))
        torch.cuda.synchronize()
        return [[1e3 * start.elapsed_time(end) for start, end in pairs] for pairs in events]


def interleaved(calls: Mapping[str, Call], clock: Clock, seconds: float) -> dict[str, float]:
    """The median time of each call in microseconds, from as many rounds as fit into `seconds`: 5 to 60."""
    if not calls:
        return {}
    functions = list(calls.values())
    clock.samples(functions, 1)  # warm-up: lazy loads, workspaces, heuristics
    estimate = sum(min(times) + clock.overhead_us for times in clock.samples(functions, 2))
    rounds = max(MIN_ROUNDS, min(MAX_ROUNDS, int(1e6 * seconds / estimate)))
    medians = map(statistics.median, clock.samples(functions, rounds))
    return dict(zip(calls, medians, strict=True))


def compiled(function: Callable[..., object], *args: object) -> Call:
    """A call of torch.compile's version for exactly these shapes, which its first use makes."""
    made: list[Callable[..., object]] = []

    def call() -> object:
        if not made:
            torch._dynamo.reset()  # so that shapes seen before do not count towards its limit
            made.append(torch.compile(function, dynamic=False))
        return made[0](*args)

    return call


def copy_bandwidth(clock: Clock) -> float:
    """GB/s, read plus write, of a copy of 2 GiB on the device."""
    source = torch.empty(COPY_ELEMENTS, dtype=torch.bfloat16, device="cuda").normal_()
    target = torch.empty_like(source)
    us = interleaved({"copy": lambda: target.copy_(source)}, clock, 0.1)["copy"]
    return 4 * COPY_ELEMENTS / us / 1e3
