"""Where a kernel test runs: on NumPy everywhere, on a GPU where there is one."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from pyptx_ops import launch
from pyptx_ops.dispatch import Route
from pyptx_ops.dsl import Kernel
from pyptx_ops.kernels.hopper.families import FAMILIES
from pyptx_ops.launch import Launcher
from tests.kernels.interpreter import Memory, run

__all__ = ["MACHINES", "Machine", "traced"]

BUILDERS = {config.name: (family.build, config) for family in FAMILIES for config in family.configs}


@functools.cache
def traced(name: str) -> Kernel:
    build, config = BUILDERS[name]
    return build(config)


class InterpretedKernel:
    def __init__(self, name: str, machine: Machine):
        self.name, self.machine = name, machine

    def launch(self, device: int, stream: int, x: int, y: int, z: int, /, *args: int | float) -> None:
        assert z == 1
        self.machine.launches.append(self.name)
        run(traced(self.name), self.machine.memory, (x, y), args)

    def prepare(self, device: int, /) -> None:
        """Nothing is loaded."""

    def attributes(self, device: int, /) -> dict[str, int]:
        return {}


class Machine:
    """Tensors on `device`, and kernels that take them: an interpreted kernel's memory is what was last shown to it."""

    def __init__(self, device: str):
        self.device = device
        self.memory = Memory()
        self.launches: list[str] = []

    def show(self, *tensors: Tensor | None) -> None:
        self.memory = Memory()
        if self.device != "cpu":
            return
        storages = {t.untyped_storage().data_ptr(): t.untyped_storage() for t in tensors if t is not None}
        for address, storage in storages.items():
            raw = (ctypes.c_uint8 * storage.nbytes()).from_address(address)
            self.memory.add(np.ctypeslib.as_array(raw).view(np.uint8), at=address)

    def poisoned(self, *shape: int, dtype: torch.dtype) -> Tensor:
        """An output that is wrong where it is not written."""
        return torch.full(shape, float("nan"), dtype=dtype, device=self.device)

    def kernel(self, arch: str, name: str) -> InterpretedKernel:
        return InterpretedKernel(name, self)

    def manifest(self, arch: str) -> Any:
        raise NotImplementedError

    @contextmanager
    def running(self, host: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
        """Let the dispatch module `host` launch here."""
        if self.device != "cpu":
            yield self
            return
        monkeypatch.setattr(host, "route", lambda device: Route("kernel", "sm_90a", "interpreted"))
        launcher: Launcher = self
        with launch.use_launcher(launcher):
            yield self


def has_kernels() -> bool:
    return torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)


MACHINES: list[Callable[[], Machine]] = [
    pytest.param(lambda: Machine("cpu"), id="interpreter"),  # type: ignore[list-item]
    pytest.param(  # type: ignore[list-item]
        lambda: Machine("cuda"), id="cuda", marks=pytest.mark.skipif(not has_kernels(), reason="needs an sm_90 GPU")
    ),
]
