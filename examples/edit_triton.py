"""A Triton kernel's PTX becomes Python, one instruction of it is changed, and the result is launched.

The kernel is out = alpha x + y, as Triton compiled it. Its `fma` gets a modifier that Triton has no word for, `.sat`,
which clamps the result to [0, 1]. Where there is no Hopper GPU, the simulator runs it. docs/triton.md walks through it.
"""

from __future__ import annotations

from pathlib import Path

import torch

from examples.run import Run, load, on_hopper
from pyptx_ops.dsl import TextKernel, run, transpile
from pyptx_ops.simulator import launch_kernel

PTX = Path(__file__).with_name("triton_axpy.ptx")  # written by tests/corpus/triton_kernels.py
BEFORE = 'ptx.fma(r[6], r[1], r[2], rnd="rn", type="f32", out=r[3])'
AFTER = 'ptx.fma(r[6], r[1], r[2], rnd="rn", sat=True, type="f32", out=r[3])'


def build() -> TextKernel:
    """The edited kernel. Raises ValueError where the instruction is not where it was."""
    text = PTX.read_text()
    python = transpile(text)
    if python.count(BEFORE) != 1:
        raise ValueError(f"wanted one {BEFORE} in the Python of {PTX.name}")
    return TextKernel.read(text).edited(run(python.replace(BEFORE, AFTER)))


def check(run: Run, device: str) -> None:
    """Compares with torch; raises AssertionError. Only the sum is rounded: by half a unit in the last place."""
    for size in (1, 127, 128, 129, 1000):
        x, y = (torch.randn(size, device=device) for _ in range(2))
        out = torch.full((size + 1,), float("nan"), device=device)
        alpha = torch.randn(()).item()
        run((-(-size // 128), 1, 1), x, y, out, alpha, size, 0, 0)
        exact = alpha * x.double() + y.double()
        torch.testing.assert_close(out[:size].double(), exact.clamp(0, 1), rtol=2**-24 * 1.001, atol=0)
        assert out[size].isnan()


def main() -> None:
    kernel = build()
    if on_hopper():
        check(load(kernel), "cuda")
    else:
        check(lambda grid, *args: launch_kernel(kernel, grid, *args), "cpu")
    print(
        f"{kernel.entry}: edited, launched {'on a GPU' if on_hopper() else 'on the simulator'}, equal to torch's result"
    )


if __name__ == "__main__":
    main()
