"""Every kernel in the manifest once or more, on small problems with ragged edges, for compute-sanitizer.

    export PYTORCH_NO_CUDA_MEMORY_CACHING=1   # else PyTorch's blocks hide what lies out of bounds
    for tool in memcheck racecheck synccheck initcheck; do
        compute-sanitizer --tool $tool --error-exitcode 9 python -m benchmarks.sanitize
    done

Operands are made and results are checked on the host, so that hardly any kernels but ours run under the tool. GEMM
configs are forced, with few CTAs, so that each works on several tiles and goes round its ring more than once.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

import pyptx_ops
from benchmarks import harness, products
from benchmarks.forcing import forced
from benchmarks.products import offs_of, operand
from benchmarks.rowwise import fused_excess, norm_excess, silu_excess
from pyptx_ops.kernels.configs import GemmConfig, RmsNormConfig, SwigluConfig
from pyptx_ops.kernels.hopper.tuning import gemm as gemm_tuning
from pyptx_ops.kernels.hopper.tuning import norm as norm_tuning
from pyptx_ops.kernels.hopper.tuning import swiglu as swiglu_tuning
from pyptx_ops.launch import Kernel, Launcher, default_launcher, use_launcher
from pyptx_ops.manifest import Manifest

ARCH = "sm_90a"
DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16}
WORKERS = 2
GROUPS = 35  # more than the 32 that a warp looks at at once


@dataclass(frozen=True)
class Trial:
    """A problem that runs one kernel. run: the error over its bound, at most 1."""

    kernel: str
    what: str
    run: Callable[[], float]


class Recorder:
    """A launcher that notes which kernels it was asked for."""

    def __init__(self, launcher: Launcher) -> None:
        self._launcher = launcher
        self.names: set[str] = set()

    def kernel(self, arch: str, name: str) -> Kernel:
        self.names.add(name)
        return self._launcher.kernel(arch, name)

    def manifest(self, arch: str) -> Manifest:
        return self._launcher.manifest(arch)


def made(rows: int, columns: int, layout: str, dtype: torch.dtype) -> Tensor:
    return operand(rows, columns, layout, dtype, device="cpu")


def on_gpu(tensor: Tensor) -> Tensor:
    """A copy on the GPU with the same strides."""
    return tensor.to(products.DEVICE)


def gemm_sizes(config: GemmConfig) -> tuple[int, int, int]:
    """Three tiles of tokens and two of weights, ragged at both ends, and more K blocks than stages.

    What is contiguous is a multiple of 8, as a tensor map wants it.
    """
    token_major = config.y_major if config.swap else config.x_major
    weight_major = config.x_major if config.swap else config.y_major
    m = 2 * config.tokens + (8 if token_major == "mn" else 3)
    n = config.weights + (8 if weight_major == "mn" else 5)
    return m, n, (config.stages + 1) * config.split_k * config.tile_k + 24


def gemm_trials(config: GemmConfig) -> Iterator[Trial]:
    m, n, k = gemm_sizes(config)
    dtype = DTYPES[config.dtype]
    x, y = ({"k": "N", "mn": "T"}[major] for major in (config.x_major, config.y_major))
    token_layout, weight_layout = (y, x) if config.swap else (x, y)

    def plain(bias: bool, out_dtype: torch.dtype | None) -> float:
        a, b = made(m, k, token_layout, dtype), made(n, k, weight_layout, dtype).t()
        added = made(1, n, "N", dtype)[0] if bias else None
        with forced(config, WORKERS):
            out = pyptx_ops.gemm(on_gpu(a), on_gpu(b), None if added is None else on_gpu(added), out_dtype=out_dtype)
        return products.product_excess(out.cpu(), a, b, added)

    def grouped(counts: list[int], depth: int, tail: int, bias: bool, out_dtype: torch.dtype | None) -> float:
        used, groups = sum(counts), len(counts)
        a = made(used + tail, depth, "N", dtype)
        a[used:] = float("nan")
        stored = torch.stack([made(n, depth, weight_layout, dtype).t() for _ in counts])
        b = stored if weight_layout == "T" else stored.transpose(1, 2).contiguous().transpose(1, 2)
        added = made(groups, n, "N", dtype) if bias else None
        offs = torch.tensor(counts).cumsum(0).int()
        gpu_added = None if added is None else on_gpu(added)
        with forced(config, WORKERS):
            out = pyptx_ops.grouped_gemm(on_gpu(a), on_gpu(b), on_gpu(offs), gpu_added, out_dtype=out_dtype)
        return products.grouped_excess(out.cpu(), a, b, offs, added)

    if config.grouped:
        few = [config.tokens + 3, 0, 1, config.tokens - 1]
        yield Trial(config.name, "few groups, bias, tail", lambda: grouped(few, k, 5, True, None))
        many = [index % 3 for index in range(GROUPS)]
        yield Trial(config.name, "many groups, fp32 out", lambda: grouped(many, 72, 0, False, torch.float32))
    else:
        yield Trial(config.name, "bias", lambda: plain(True, None))
        yield Trial(config.name, "fp32 out", lambda: plain(False, torch.float32))


def norm_hidden(config: RmsNormConfig) -> int:
    """A width that the selector gives this config: nearly all that fits in registers, or a little more."""
    if config.wide:
        return config.resident + 3 * config.width
    return config.resident - config.width


def norm_trials(config: RmsNormConfig) -> Iterator[Trial]:
    rows, hidden, dtype = config.rows + 1, norm_hidden(config), DTYPES[config.dtype]

    def run(weight_dtype: torch.dtype | None, in_place: bool) -> float:
        x, residual = made(rows, hidden, "N", dtype), made(rows, hidden, "N", dtype)
        weight = None if weight_dtype is None else made(1, hidden, "N", weight_dtype)[0]
        gpu_x, gpu_residual = (tensor.to(products.DEVICE, copy=True) for tensor in (x, residual))
        gpu_weight = None if weight is None else weight.to(products.DEVICE)
        if not config.residual:
            return norm_excess(pyptx_ops.rms_norm(gpu_x, gpu_weight).cpu(), x, weight)
        if in_place:
            pyptx_ops.fused_add_rms_norm_(gpu_x, gpu_residual, gpu_weight)
            return fused_excess((gpu_x.cpu(), gpu_residual.cpu()), x, residual, weight)
        y, total = pyptx_ops.fused_add_rms_norm(gpu_x, gpu_residual, gpu_weight)
        return fused_excess((y.cpu(), total.cpu()), x, residual, weight)

    yield Trial(config.name, "weight", lambda: run(dtype, False))
    yield Trial(config.name, "fp32 weight", lambda: run(torch.float32, config.residual))
    yield Trial(config.name, "no weight", lambda: run(None, False))


def swiglu_columns(config: SwigluConfig) -> int:
    return 8 * 131 if config.width > 1 else 131


def swiglu_trials(config: SwigluConfig) -> Iterator[Trial]:
    rows, columns, dtype = 5, swiglu_columns(config), DTYPES[config.dtype]
    interleaved = config.layout == "pairs"

    def packed(interleaved: bool) -> float:
        x = made(rows, 2 * columns, "N", dtype)
        gate, up = (x[:, ::2], x[:, 1::2]) if interleaved else x.chunk(2, -1)
        return silu_excess(pyptx_ops.silu_and_mul(x.to(products.DEVICE), interleaved).cpu(), gate, up)

    def halves(layout: str, used: int) -> float:
        gate, up = made(rows, columns, layout, dtype), made(rows, columns, layout, dtype)
        offs = offs_of(torch.tensor([1, used - 1])) if used < rows else None
        out = pyptx_ops.swiglu(on_gpu(gate), on_gpu(up), offs).cpu()
        if bool((out[used:] != 0).any()):
            return float("inf")
        return silu_excess(out[:used], gate[:used], up[:used])

    yield Trial(config.name, "packed", lambda: packed(interleaved))
    if config.layout != "pairs":
        layout = "T" if config.layout == "strided" else "N"
        yield Trial(config.name, "two inputs", lambda: halves(layout, rows))
        yield Trial(config.name, "offs", lambda: halves(layout, rows - 2))


def trials() -> Iterator[Trial]:
    for gemm_config in gemm_tuning.configs():
        yield from gemm_trials(gemm_config)
    for norm_config in norm_tuning.configs():
        yield from norm_trials(norm_config)
    for swiglu_config in swiglu_tuning.configs():
        yield from swiglu_trials(swiglu_config)


def ran(every: Sequence[Trial], recorder: Recorder, deadline: float) -> list[str]:
    """Runs trials until the deadline (of `time.monotonic`), each with plans of its own; what went wrong."""
    failures: list[str] = []
    for number, trial in enumerate(every):
        if time.monotonic() > deadline:
            return [
                *failures,
                f"no time left for {len(every) - number} of {len(every)} trials, {trial.kernel} and after",
            ]
        torch.manual_seed(number)
        print(f"{trial.kernel}: {trial.what}", file=sys.stderr, flush=True)
        own = Recorder(recorder)
        with use_launcher(own):
            excess = trial.run()
        if trial.kernel not in own.names:
            failures.append(f"{trial.kernel} ({trial.what}): did not run, but {', '.join(own.names) or 'none'}")
        if not excess <= 1:
            failures.append(f"{trial.kernel} ({trial.what}): {excess:.3g} times its error bound")
    return failures


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sanitize", description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", metavar="TEXT", help="kernels whose name contains this")
    parser.add_argument("--skip", metavar="TEXT", help="but not those whose name contains this")
    parser.add_argument("--budget", type=float, default=600.0, metavar="S", help="seconds to spend (%(default)s)")
    given = parser.parse_args(arguments)
    if not harness.has_gpu():
        return 2
    began = time.monotonic()
    recorder = Recorder(default_launcher())

    def chosen(name: str) -> bool:
        return given.only in name and not (given.skip and given.skip in name)

    failures = ran([t for t in trials() if chosen(t.kernel)], recorder, began + given.budget)
    wanted = {record.name for record in recorder.manifest(ARCH).kernels if chosen(record.name)}
    missed = sorted(wanted - recorder.names)
    failures += [f"{name}: no trial ran it" for name in missed]
    for failure in failures:
        print(f"FAILED {failure}")
    print(f"{len(wanted) - len(missed)} of {len(wanted)} kernels in the manifest ran, {len(failures)} failures")
    print(f"{time.monotonic() - began:.0f} s")
    return 1 if failures or not wanted else 0


if __name__ == "__main__":
    sys.exit(main())
