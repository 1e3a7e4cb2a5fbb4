"""A GPU made of the recording driver: CPU tensors stand for its tensors."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from pyptx_ops import _launch, launch
from pyptx_ops.dispatch import Route, bound, gemm, gemm_swiglu, norm, swiglu
from pyptx_ops.launch import param_spec, use_launcher
from tests.kernels.machines import traced

from .conftest import StubDriver

CPU = 1  # DLPack's device type

needs_exchange = pytest.mark.skipif(
    not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"), reason="this torch has no DLPack exchange API"
)


class StubLauncher:
    """Every kernel as the driver would have it, with nothing in it."""

    def __init__(self, stub: StubDriver) -> None:
        self.stub = stub
        self.kernels: dict[str, _launch.Kernel] = {}

    def kernel(self, arch: str, name: str) -> _launch.Kernel:
        if name not in self.kernels:
            params = tuple(map(param_spec, traced(name).params))
            self.kernels[name] = self.stub.kernel(params)
        return self.kernels[name]

    def manifest(self, arch: str) -> Any:
        raise NotImplementedError


@pytest.fixture
def gpu(stub: StubDriver, monkeypatch: pytest.MonkeyPatch) -> Iterator[StubLauncher]:
    """CPU tensors take the kernels' path, and calls with them are bound."""
    monkeypatch.setattr(Tensor, "get_device", lambda self: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: SimpleNamespace(multi_processor_count=132))
    monkeypatch.setattr(bound, "_tables", {})
    monkeypatch.setattr(launch, "_bound", [])
    for family in (gemm, gemm_swiglu, norm, swiglu):
        monkeypatch.setattr(family, "route", lambda device: Route("kernel", "sm_90a", "recorded"))
    for family in (gemm, norm, swiglu):
        monkeypatch.setattr(family, "_plans", {})
    launcher = StubLauncher(stub)
    with use_launcher(launcher):
        yield launcher


def randn(*shape: int) -> Tensor:
    return torch.randn(shape).bfloat16()
