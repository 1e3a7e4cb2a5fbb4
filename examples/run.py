"""What the examples share: from a traced kernel to a launch on torch tensors."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from pyptx_ops.dsl import Kernel, TextKernel
from pyptx_ops.launch import default_launcher, param_spec
from pyptx_ops.ptxas import Report, assemble, find_ptxas

__all__ = ["Run", "compile_ptx", "load", "main", "on_hopper"]

Run = Callable[..., None]
"""`run(grid, *args)`: launches a kernel."""


def on_hopper() -> bool:
    """Whether torch's current device runs code for sm_90a."""
    return torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)


def compile_ptx(kernel: Kernel | TextKernel) -> tuple[bytes, Report | None]:
    """(cubin, what ptxas says of it), or (PTX, None) where there is no ptxas: the driver compiles it then."""
    ptxas = find_ptxas()
    if ptxas is None:
        return kernel.ptx().encode(), None
    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder) / f"{kernel.entry}.cubin"
        report = assemble(ptxas, kernel.ptx(), kernel.target, cubin)
        return cubin.read_bytes(), report


def load(kernel: Kernel | TextKernel) -> Run:
    """Compile and load a kernel: `run(grid, *args)` launches it on torch's current device and stream.

    grid: CTAs along x, y and z.  args: one per parameter, tensors for pointers and tensor maps.
    """
    image, _ = compile_ptx(kernel)
    parameters = tuple(param_spec(param) for param in kernel.params)
    library = default_launcher().driver.load(image, kernel.entry)
    loaded = library.kernel(kernel.entry, parameters, kernel.block, kernel.cluster, kernel.dynamic_smem, kernel.pdl)

    def run(grid: tuple[int, int, int], *args: Tensor | int | float) -> None:
        values: list[int | float] = []
        for param, arg in zip(kernel.params, args, strict=True):
            if not isinstance(arg, Tensor):
                values.append(arg)
            elif param.kind == "tensor_map":
                values += describe(arg)
            else:
                values.append(arg.data_ptr())
        loaded.launch(torch.cuda.current_device(), torch.cuda.current_stream().cuda_stream, *grid, *values)

    return run


def describe(tensor: Tensor) -> list[int]:
    """A tensor as a tensor map takes it: address, sizes (innermost first), byte strides of all but the innermost."""
    sizes, strides = tensor.shape[::-1], tensor.stride()[::-1]
    if strides[0] != 1:
        raise ValueError(f"a tensor map wants the last dimension contiguous, got strides {tensor.stride()}")
    return [tensor.data_ptr(), *sizes, *(stride * tensor.element_size() for stride in strides[1:])]


def main(kernel: Kernel, check: Callable[[Run, str], None]) -> None:
    """Show the kernel; where there is a Hopper GPU, run `check(run, device)`, which compares it with torch."""
    _, report = compile_ptx(kernel)
    hopper = on_hopper()
    if not hopper:
        print(kernel.ptx())
    print(f"{kernel.entry}: {len(kernel)} instructions", end="")
    if report is None:
        print("; no ptxas here, so it was not assembled")
    else:
        print(f"; assembled for {kernel.target}: {report.registers} registers, {report.spill_stores} bytes spilled")
    if hopper:
        check(load(kernel), "cuda")
        print(f"ran on {torch.cuda.get_device_name()}: equal to torch's result")
    else:
        print("not run: it needs an H100 or H200 (compute capability 9.0)")
