"""What the simulator's tests share: launching a kernel on CPU tensors, and pieces of kernels."""

from __future__ import annotations

import numpy as np
import torch

from pyptx_ops.dsl import Kernel, Reg, ptx, special
from pyptx_ops.simulator import SimulatedKernel, SimulatedLauncher

POLICIES = ("lazy", "eager", "reverse", "random")


def launch(
    kernel: Kernel, *args: torch.Tensor | int, grid: int = 1, policy: str = "lazy", seed: int = 0, **how: int
) -> SimulatedLauncher:
    """Tensors as their addresses. how: further options of `simulate`."""
    values = [arg.data_ptr() if isinstance(arg, torch.Tensor) else arg for arg in args]
    machine = SimulatedLauncher(seed, policy, **{"limit": 2_000_000, **how})
    SimulatedKernel(machine, kernel).launch(0, 0, grid, 1, 1, *values)
    return machine


def item(base: Reg, index: Reg, nbytes: int) -> Reg:
    """The address of an element in global memory."""
    return base + ptx.mul.wide(index, nbytes)


def thread_index() -> Reg:
    return ptx.mov(special("tid.x"), type="u32")


def copy_in(k: Kernel, source: Reg, target: Reg, nbytes: int, thread: Reg) -> None:
    """All threads copy to shared memory, 16 bytes each at a time."""
    threads = k.block[0]
    for start in range(0, nbytes, 16 * threads):
        with k.if_(thread < (nbytes - start) // 16):
            chunk = ptx.ld(item(source, thread, 16) + start, space="global", vec="v4", type="b32")
            ptx.st(target + thread * 16 + start, chunk, space="shared::cta", vec="v4", type="b32")


def tensor(array: np.ndarray) -> torch.Tensor:
    """The bytes of an array, in memory that kernels may touch."""
    return torch.from_numpy(np.ascontiguousarray(array).view(np.uint8).copy())
