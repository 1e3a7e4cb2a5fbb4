"""From checked tensors to a launch: which path a device takes, and what the families share.

The functions of a family (`dispatch/gemm.py`, `dispatch/norm.py`, `dispatch/swiglu.py`) receive arguments that the op
has checked: CUDA tensors of one device, with dtypes in `KERNEL_DTYPES` (the weight of a norm may have another) and any
strides and sizes, 0 included. They allocate the outputs (contiguous) and launch on the current stream of the device.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Literal

import torch

from pyptx_ops import launch
from pyptx_ops.manifest import ManifestError

__all__ = ["ARCHES", "KERNEL_DTYPES", "Route", "multiprocessors", "route", "runs_kernels"]

KERNEL_DTYPES = (torch.bfloat16, torch.float16)
ARCHES = {(9, 0): "sm_90a"}
"""Compute capability -> the architecture whose kernels it runs. Code for sm_90a runs on 9.0 only."""


@dataclass(frozen=True)
class Route:
    """The path that the ops take on a device, and why."""

    path: Literal["kernel", "reference"]
    arch: str | None
    why: str


class _CudaRoutes(dict[int, Route]):
    """By device index, found out on first use."""

    def __missing__(self, index: int) -> Route:
        self[index] = found = _cuda_route(index)
        if found.path == "reference" and found.why not in _warned:
            _warned.add(found.why)
            warnings.warn(f"pyptx_ops runs its reference path: {found.why}", RuntimeWarning, stacklevel=2)
        return found


_routes = _CudaRoutes()
_warned: set[str] = set()


def route(device: torch.device | str | int) -> Route:
    """Says whether the ops run kernels or the reference path on a device, and why. Cached per device.

    device: an integer is the index of a CUDA device, or -1 for the CPU.
    """
    if isinstance(device, int):
        device = torch.device("cuda", device) if device >= 0 else torch.device("cpu")
    device = torch.device(device)
    if device.type == "cpu" and launch.simulated_multiprocessors() is not None:
        return Route("kernel", ARCHES[9, 0], "the kernels are simulated")
    if device.type != "cuda":
        return Route("reference", None, f"{device.type} tensors take the reference path")
    return _routes[torch.cuda.current_device() if device.index is None else device.index]


def runs_kernels(tensor: torch.Tensor) -> bool:
    """Whether an op on this tensor launches kernels: a CUDA device that has them, and a dtype that they take."""
    if tensor.dtype not in KERNEL_DTYPES:
        return False
    if tensor.is_cuda:
        return _routes[tensor.get_device()].path == "kernel"
    return tensor.is_cpu and launch.simulated_multiprocessors() is not None


def multiprocessors(device: int) -> int:
    """Of a device that runs kernels, by its index (-1: the CPU, simulated)."""
    simulated = launch.simulated_multiprocessors()
    if device < 0 and simulated is not None:
        return simulated
    count: int = torch.cuda.get_device_properties(device).multi_processor_count
    return count


def _cuda_route(index: int) -> Route:
    capability = torch.cuda.get_device_capability(index)
    device = f"{torch.cuda.get_device_name(index)} (compute capability {capability[0]}.{capability[1]})"
    arch = ARCHES.get(capability)
    if arch is None:
        return Route("reference", None, f"no kernels for {device}, only for {', '.join(ARCHES.values())}")
    launcher = launch.current_launcher()
    try:
        launcher.manifest(arch)
        if isinstance(launcher, launch.CudaLauncher):
            launcher.driver.version()
    except (ManifestError, launch.LaunchError) as error:
        return Route("reference", arch, f"kernels for {arch} cannot be launched: {error}")
    return Route("kernel", arch, f"kernels for {arch} on {device}")
