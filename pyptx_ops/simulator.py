"""Runs the ops' own kernels on CPU tensors, without a GPU, and stops at the first thing that a kernel must not do.

    with pyptx_ops.simulate(seed=1, policy="random"):
        y = pyptx_ops.gemm(a, b)  # a, b on the CPU

The kernels are traced when they are first asked for; the PTX that runs is the text that ptxas gets. What is modelled,
and how to read a report: docs/simulator.md.
"""

from __future__ import annotations

import gc
import struct
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import torch

from . import launch
from .dsl import Kernel, TextKernel
from .dsl.ir import Function, Instruction
from .dsl.sim import Lints, Program, Timeline, load, map_words, run
from .dsl.types import Param
from .kernels.hopper.families import FAMILIES
from .manifest import Manifest, ManifestError

__all__ = ["ARCH", "SimulatedKernel", "SimulatedLauncher", "launch_kernel", "simulate"]

ARCH = "sm_90a"
FORMATS = {"pointer": "Q", "u32": "I", "i32": "i", "u64": "Q", "i64": "q", "f32": "f", "f64": "d"}


class SimulatedLauncher:
    """Stands behind the Launcher protocol. Launches run at once, and raise SimulationError.

    seed, policy: of the order in which warps and asynchronous operations take place (`dsl.sim.POLICIES`).
    multiprocessors: how many the kernels are told of; few make persistent kernels take several tiles per CTA.
    limit: warp instructions of a launch after which it is taken to be endless.
    resident: clusters that run at once; 0: a number that the seed draws.
    interleave: whether lanes of a warp that have diverged take turns.
    timeline, lints: to which launches are added.
    """

    def __init__(
        self, seed: int = 0, policy: str = "lazy", multiprocessors: int = 4, limit: int = 200_000_000,
        timeline: Timeline | None = None, lints: Lints | None = None, resident: int = 0, interleave: bool = False,
    ):  # fmt: skip
        self.timeline, self.lints = timeline, lints
        self.resident, self.interleave = resident, interleave
        self.seed, self.policy, self.multiprocessors, self.limit = seed, policy, multiprocessors, limit
        self.executed = 0  # warp instructions so far
        self.launches: Counter[str] = Counter()  # of each kernel

    def kernel(self, arch: str, name: str) -> SimulatedKernel:
        if arch != ARCH:
            raise ManifestError(f"kernels for {ARCH} are simulated, not for {arch}")
        return SimulatedKernel(self, traced(name))

    def manifest(self, arch: str) -> Manifest:
        """An empty one: kernels are traced by name."""
        return Manifest(arch, None, ())


class SimulatedKernel:
    """A traced kernel on a simulated device."""

    def __init__(self, launcher: SimulatedLauncher, kernel: Kernel | TextKernel):
        self.launcher = launcher
        self.params = kernel.params
        self.name = kernel.entry
        self.program = program_of(kernel)

    def launch(self, device: int, stream: int, grid_x: int, grid_y: int, grid_z: int, /, *args: int | float) -> None:
        """Runs one grid to its end; it may touch every CPU tensor that is alive. Device and stream are ignored."""
        self.launch_on(live_tensors(), (grid_x, grid_y, grid_z), *args)

    def launch_on(
        self, tensors: Iterable[torch.Tensor], grid: tuple[int, int, int], /, *args: int | float,
        fresh: Iterable[torch.Tensor] = (),
    ) -> None:  # fmt: skip
        """The same, but that it may touch only the memory behind some tensors. fresh: those that hold nothing yet."""
        if not all(grid):
            return
        params, maps = pack(self.program, self.params, args)
        launcher = self.launcher
        launcher.launches[self.name] += 1
        launcher.executed += run(
            self.program, grid, params, maps, storages(tensors), fresh=[extent(tensor) for tensor in fresh],
            policy=launcher.policy, seed=launcher.seed, limit=launcher.limit, resident=launcher.resident,
            multiprocessors=launcher.multiprocessors, interleave=launcher.interleave, timeline=launcher.timeline,
            lints=launcher.lints,
        )  # fmt: skip

    def prepare(self, device: int, /) -> None:
        """Nothing is left to do."""

    def attributes(self, device: int, /) -> dict[str, int]:
        return {}


def launch_kernel(
    kernel: Kernel | TextKernel, grid: tuple[int, int, int], *args: torch.Tensor | int | float,
    fresh: Iterable[torch.Tensor] = (),
) -> None:  # fmt: skip
    """Runs a traced kernel, or one that is given as text, on CPU tensors, which are all that it may touch.

    Inside `simulate` it runs under its schedule.

    args: one per parameter. A tensor stands for its address, and for a tensor map with its sizes and strides too.
    fresh: contiguous tensors, or slices of them, that hold nothing yet; reading them before writing them is reported.
    Raises SimulationError, and TypeError or ValueError for arguments that do not fit the parameters.
    """
    if len(args) != len(kernel.params):
        raise TypeError(f"{kernel.entry} takes {len(kernel.params)} arguments, got {len(args)}")
    used = launch.current_launcher() if launch.simulated_multiprocessors() is not None else SimulatedLauncher()
    assert isinstance(used, SimulatedLauncher)
    values: list[int | float] = []
    for param, arg in zip(kernel.params, args, strict=True):
        if not isinstance(arg, torch.Tensor):
            values.append(arg)
        elif param.tensor_map:
            values += described(arg)
        else:
            values.append(arg.data_ptr())
    tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
    SimulatedKernel(used, kernel).launch_on(tensors, grid, *values, fresh=fresh)


def described(tensor: torch.Tensor) -> list[int]:
    """A tensor as a tensor map takes it: address, sizes (innermost first), byte strides of all but the innermost."""
    sizes, strides = tensor.shape[::-1], tensor.stride()[::-1]
    if not strides or strides[0] != 1:
        raise ValueError(f"a tensor map wants the last dimension contiguous, got strides {tensor.stride()}")
    return [tensor.data_ptr(), *sizes, *(stride * tensor.element_size() for stride in strides[1:])]


@cache
def traced(name: str) -> Kernel:
    """The kernel of a shipped config by its name. Raises ManifestError."""
    for family in FAMILIES:
        for config in family.configs:
            if config.name == name:
                return family.build(config)
    raise ManifestError(f"no config makes a kernel {name!r}")


@cache
def program_of(kernel: Kernel | TextKernel) -> Program:
    """A traced kernel, loaded; reports name its Python lines."""
    (function,) = (s for s in kernel.module().statements if isinstance(s, Function))
    instructions = [s for s in function.body.body if isinstance(s, Instruction)]
    return load(
        kernel.ptx(), block=kernel.block, cluster=kernel.cluster, shared_memory=kernel.dynamic_smem,
        instructions=instructions,
    )  # fmt: skip


def pack(program: Program, params: tuple[Param, ...], args: tuple[int | float, ...]) -> tuple[bytes, list[int]]:
    """The parameters as they lie in memory, and the tensor maps among them. Raises TypeError or OverflowError."""
    wanted = sum(param.values for param in params)
    if len(args) != wanted:
        raise TypeError(f"{program.name} takes {wanted} values, got {len(args)}")
    memory, maps, position = bytearray(program.param_bytes), [], 0
    for param, (offset, _) in zip(params, program.params.values(), strict=True):
        values = args[position : position + param.values]
        position += param.values
        if param.tensor_map:
            maps += map_words(offset, param.tensor_map, tuple(int(value) for value in values))
            continue
        try:
            struct.pack_into("<" + FORMATS[param.kind], memory, offset, values[0])
        except struct.error as error:
            raise OverflowError(f"{program.name}: {param.name} is {param.kind}, got {values[0]!r}") from error
    return bytes(memory), maps


def live_tensors() -> list[torch.Tensor]:
    """Every CPU tensor that the garbage collector knows of."""
    kinds = (torch.Tensor, torch.nn.Parameter)
    tensors = [item for item in gc.get_objects() if type(item) in kinds]
    return [tensor for tensor in tensors if tensor.device.type == "cpu" and tensor.layout is torch.strided]


def storages(tensors: Iterable[torch.Tensor]) -> list[tuple[int, int]]:
    """(address, bytes) of the memory behind tensors."""
    found = [tensor.untyped_storage() for tensor in tensors]
    return sorted({(storage.data_ptr(), storage.nbytes()) for storage in found})


def extent(tensor: torch.Tensor) -> tuple[int, int]:
    """(address, bytes) of a contiguous tensor. Raises ValueError for others."""
    if not tensor.is_contiguous():
        raise ValueError(f"a fresh tensor is contiguous, got strides {tensor.stride()} of {tuple(tensor.shape)}")
    return tensor.data_ptr(), tensor.numel() * tensor.element_size()


@contextmanager
def simulate(
    *,
    seed: int = 0,
    policy: str = "lazy",
    multiprocessors: int = 4,
    limit: int = 200_000_000,
    resident: int = 0,
    interleave: bool = False,
    trace: str | Path | None = None,
    lint: bool | Lints = False,
) -> Iterator[SimulatedLauncher]:
    """Inside the block the ops run their Hopper kernels on CPU tensors of bf16 and fp16, in this process only.

    Args:
        seed: of the "random" policy's orders, of the number of clusters that run at once, and of lanes that interleave.
        policy: when asynchronous copies and wgmma take place: "lazy" (as late as possible), "eager" (at once),
            "reverse" (late, and the last one first), or "random".
        multiprocessors: how many the ops plan for, and whose room bounds how many clusters run at once.
        limit: warp instructions of one launch after which it is taken to be endless.
        resident: clusters that run at once, instead of a number that the seed draws, from one to as many as there is
            room for.
        interleave: whether lanes of a warp that have diverged take turns at random, as they may since Volta. Otherwise
            the ones furthest behind go on, until all are together again.
        trace: a file for a timeline of the launches, which Perfetto and Chrome show; written when the block ends.
        lint: whether bank conflicts and sectors of accesses are counted, in the launcher's `lints`; or where to add
            them.

    Raises (in an op): pyptx_ops.dsl.sim.SimulationError at the first thing that a kernel must not do.
    """
    timeline = None if trace is None else Timeline()
    lints = lint if isinstance(lint, Lints) else Lints() if lint else None
    try:
        machine = SimulatedLauncher(seed, policy, multiprocessors, limit, timeline, lints, resident, interleave)
        with launch.use_launcher(machine) as launcher:
            assert isinstance(launcher, SimulatedLauncher)
            yield launcher
    finally:
        if timeline is not None and trace is not None:
            Path(trace).write_text(timeline.json())
