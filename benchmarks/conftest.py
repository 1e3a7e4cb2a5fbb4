"""`pytest benchmarks/bench_*.py --benchmark-enable`: pytest-benchmark with device time from CUDA events."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.harness import OURS, Workload, measure
from benchmarks.timing import CudaClock

SECONDS = 0.5
ROUNDS = 20


class Moment:
    """A point on the device's time line. The difference of two is in seconds, and waits for the later one."""

    def __init__(self) -> None:
        self.event = torch.cuda.Event(enable_timing=True)
        self.event.record()

    def __sub__(self, earlier: Moment) -> float:
        self.event.synchronize()
        return earlier.event.elapsed_time(self.event) / 1e3


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.benchmark(timer=Moment, group=item.name))


@pytest.fixture(scope="session")
def clock() -> CudaClock:
    return CudaClock()


@pytest.fixture
def compare(request: pytest.FixtureRequest) -> Callable[[Callable[[], Workload]], None]:
    """Checks a workload, measures it beside its peers (in `extra_info`), then alone with pytest-benchmark."""
    if not torch.cuda.is_available():
        pytest.skip("benchmarks need a GPU")
    benchmark: Any = request.getfixturevalue("benchmark")
    clock: CudaClock = request.getfixturevalue("clock")

    def run(make: Callable[[], Workload]) -> None:
        workload = make()
        times = measure(workload, clock, SECONDS)
        benchmark.extra_info.update({"us": times, **workload.tags})
        ours = times[OURS]
        assert isinstance(ours, float)
        benchmark.pedantic(workload.ours, setup=clock.prepare, rounds=ROUNDS, warmup_rounds=1)

    return run
