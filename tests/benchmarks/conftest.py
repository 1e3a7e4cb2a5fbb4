from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch

from benchmarks import bench_overhead, harness, products, tune
from benchmarks.timing import Call
from pyptx_ops.kernels.hopper.tuning import gemm as tuning


class FakeClock:
    """Says that a call takes as many microseconds as the call itself returns, else 1; counts the rounds."""

    overhead_us = 0.0

    def __init__(self) -> None:
        self.rounds: list[int] = []
        self.order: list[Call] = []

    def samples(self, calls: Sequence[Call], rounds: int) -> list[list[float]]:
        self.rounds.append(rounds)
        times: list[list[float]] = [[] for _ in calls]
        for _ in range(rounds):
            for call, found in zip(calls, times, strict=True):
                self.order.append(call)
                value = call()
                found.append(value if isinstance(value, float) else 1.0)
        return times


class EveryKernel:
    """A launcher and its manifest, in which every GEMM kernel was built and none can be launched."""

    def manifest(self, arch: str) -> EveryKernel:
        return self

    def kernel(self, name: str) -> None:
        assert name in self

    def __contains__(self, name: str) -> bool:
        return name in {config.name for config in tuning.configs()}


class Properties:
    multi_processor_count = 132


@pytest.fixture(autouse=True)
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "DEVICE", "cpu")
    monkeypatch.setattr(tune, "current_launcher", EveryKernel)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: Properties)


@pytest.fixture
def fake_gpu(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Lets the command lines believe in a GPU, whose clock is a fake and whose tensors live on the CPU."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA Fake (80GB)")
    for nothing in ("synchronize", "empty_cache"):
        monkeypatch.setattr(torch.cuda, nothing, lambda: None)
    for module in (harness, tune):
        monkeypatch.setattr(module, "CudaClock", FakeClock)
    monkeypatch.setattr(harness, "copy_bandwidth", lambda clock: 4000.0)
    monkeypatch.setattr(bench_overhead, "BATCH", 1)
    return lambda: None
