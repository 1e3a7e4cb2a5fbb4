"""Runs the examples without a GPU: the interpreter of ordinary threads, with a copy engine and tensor cores added.

Warps take turns in a random order, copies complete at random times or as late as can be, and a wgmma reads and writes
only when somebody waits for its group. So a missing wait shows as a wrong result, and a missing arrival as a deadlock.
Covered is what the examples use: 2D tiles, K-major operands of bf16 with 128-byte swizzle, one CTA at a time.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyptx_ops.dsl import Kernel, TensorMapSpec
from pyptx_ops.dsl.ir import Address, Symbol
from tests.kernels.interpreter import RUNNING, SHARED_BASE, Cluster, Memory, Program, encode

__all__ = ["load"]

MAP_BASE = 1 << 48  # where tensor maps are said to lie
MISALIGNED = 16  # dynamic shared memory is aligned to no more


def load(kernel: Kernel) -> Callable[..., None]:
    """What `examples.run.load` gives, for tensors on the CPU."""

    def run(grid: tuple[int, int, int], *args: Tensor | int | float) -> None:
        memory = Memory()
        values: list[Any] = []
        for param, arg in zip(kernel.params, args, strict=True):
            if param.tensor_map is not None:
                assert isinstance(arg, Tensor)
                values.append(TensorMap(arg, param.tensor_map))
            else:
                values.append(memory.add(arg.numpy()) if isinstance(arg, Tensor) else arg)
        program = Program(kernel)
        program.shared["dynamic_smem"] = SHARED_BASE + MISALIGNED
        program.shared_bytes = MISALIGNED + kernel.dynamic_smem
        for y in range(grid[1]):
            for x in range(grid[0]):
                Machine(program, memory, (x, y), (grid[0], grid[1]), values).run()

    return run


@dataclass(frozen=True)
class TensorMap:
    """A matrix in memory, and the box in which it is moved."""

    tensor: Tensor
    spec: TensorMapSpec

    def box(self, coordinates: list[int]) -> tuple[np.ndarray, np.ndarray, tuple[slice, slice]]:
        """(the matrix as 16-bit words, the box at these coordinates with zeros outside, the part that lies inside)."""
        matrix = self.tensor.view(dtype=torch.int16).numpy()
        (column, row), (columns, rows) = coordinates, self.spec.box
        inside = slice(row, min(row + rows, matrix.shape[0])), slice(column, min(column + columns, matrix.shape[1]))
        box = np.zeros((rows, columns), np.int16)
        part = matrix[inside]
        box[: part.shape[0], : part.shape[1]] = part
        return matrix, box, inside


@dataclass
class Barrier:
    """An mbarrier: arrivals and bytes that its phase still wants, and the parity of the phase."""

    count: int
    pending: int
    nbytes: int = 0
    parity: int = 0


class Machine(Cluster):
    """One CTA. Copies and wgmma groups are closures that wait for their time."""

    def __init__(self, *args: Any):
        super().__init__(*args)
        self.warps = self.n // 32
        self.warp = np.arange(self.n) // 32
        self.stalled = np.zeros(self.warps, bool)  # waiting at an mbarrier whose phase is not complete
        self.barriers: dict[int, Barrier] = {}
        self.copies: list[Callable[[], None]] = []
        self.groups: dict[str, list[list[list[Callable[[], None]]]]] = {
            kind: [[[]] for _ in range(self.warps)] for kind in ("wgmma", "store")
        }
        self.random = random.Random(0)
        self.haste = 0.1 * (args[2][0] % 2)  # every other CTA's copies complete only when nothing else can go on

    def run(self) -> None:
        end = len(self.program.code)
        with np.errstate(all="ignore"):
            while (alive := self.pc < end).any():
                ready = alive & (self.waiting == RUNNING) & ~self.stalled[self.warp]
                if self.copies and (self.random.random() < self.haste or not ready.any()):
                    self.copies.pop(self.random.randrange(len(self.copies)))()
                elif ready.any():
                    group = self.random.choice(np.unique(self.warp[ready] // 4))
                    ready &= self.warp // 4 == group
                    pc = int(self.pc[ready].min())
                    self.step(pc, ready & (self.pc == pc))
                else:
                    assert not self.stalled.any(), f"deadlock: {self.barriers}"
                    self.release(alive)
        for kind, groups in self.groups.items():
            assert not any(any(group) for warp in groups for group in warp), f"a {kind} that nobody waited for"

    def bits(self, operand: Any, mask: Any) -> Any:
        if isinstance(operand, Symbol) and operand.name.startswith("param_"):
            return np.full(self.n, MAP_BASE + self.program.params[operand.name][0], np.uint64)
        return super().bits(operand, mask)

    def step(self, pc: int, mask: Any) -> None:
        instruction = self.program.code[pc]
        opcode = instruction.opcode
        found = next((name for name in HANDLERS if opcode.startswith(name)), None)
        if found is None:
            super().step(pc, mask)
            return
        self.pc[mask] += 1
        if instruction.guard is not None:
            mask = mask & self.read(instruction.guard, "pred", mask).astype(bool)
        for warp in np.unique(self.warp[mask]):
            HANDLERS[found](self, opcode, instruction.operands, mask & (self.warp == warp), int(warp))

    def nothing(self, *_: Any) -> None:
        """Fences, and what only tells the hardware something."""

    def value(self, operand: Any, mask: Any) -> int:
        """A value that is the same in all threads of the mask."""
        if isinstance(operand, Address):
            return self.value(operand.base, mask) + int(operand.offset or 0)
        values = np.unique(self.bits(operand, mask)[mask])
        assert len(values) == 1, f"{operand} differs between threads"
        return int(values[0])

    # -- mbarriers -------------------------------------------------------------------------------------------------

    def init_barrier(self, _: str, operands: Any, mask: Any, warp: int) -> None:
        count = self.value(operands[1], mask)
        self.barriers[self.value(operands[0], mask)] = Barrier(count, count)

    def arrive(self, opcode: str, operands: Any, mask: Any, warp: int) -> None:
        barrier = self.barriers[self.value(operands[1], mask)]
        barrier.pending -= int(mask.sum())
        barrier.nbytes += self.value(operands[2], mask) if "expect_tx" in opcode else 0
        self.complete(barrier)

    def complete(self, barrier: Barrier) -> None:
        assert barrier.pending >= 0, "more arrivals than the barrier counts"
        if barrier.pending == 0 and barrier.nbytes == 0:
            barrier.pending, barrier.parity = barrier.count, barrier.parity ^ 1
            self.stalled[:] = False

    def try_wait(self, _: str, operands: Any, mask: Any, warp: int) -> None:
        barrier = self.barriers[self.value(operands[1], mask)]
        done = barrier.parity != self.value(operands[2], mask)
        self.write(operands[0], encode(np.full(self.n, done), "pred"), mask)
        self.stalled[warp] = not done

    # -- copies ----------------------------------------------------------------------------------------------------

    def tile(self, spec: TensorMapSpec, address: int) -> tuple[np.ndarray, np.ndarray]:
        """(shared memory as words, where in it each element of a box lies)."""
        columns, rows = spec.box
        assert spec.swizzle in (0, 128) and address % (1024 if spec.swizzle else 128) == 0
        places = address + 2 * np.arange(rows * columns).reshape(rows, columns)
        return self.words(), ((swizzled(places) if spec.swizzle else places) - SHARED_BASE) // 2

    def words(self) -> np.ndarray:
        """Shared memory as 16-bit words, the first at SHARED_BASE."""
        return self.shared.arrays[0].view(np.int16)

    def load_tile(self, _: str, operands: Any, mask: Any, warp: int) -> None:
        assert mask.sum() == 1, "one thread issues a copy"
        tensor_map, coordinates = self.described(operands[1], mask)
        address, barrier = self.value(operands[0], mask), self.barriers[self.value(operands[2], mask)]

        def copy() -> None:
            _, box, _ = tensor_map.box(coordinates)
            words, places = self.tile(tensor_map.spec, address)
            words[places] = box
            barrier.nbytes -= box.nbytes
            self.complete(barrier)

        self.copies.append(copy)

    def store_tile(self, _: str, operands: Any, mask: Any, warp: int) -> None:
        tensor_map, coordinates = self.described(operands[0], mask)
        address = self.value(operands[1], mask)

        def copy() -> None:
            matrix, _, inside = tensor_map.box(coordinates)
            words, places = self.tile(tensor_map.spec, address)
            part = matrix[inside]
            part[...] = words[places][: part.shape[0], : part.shape[1]]

        self.groups["store"][warp][-1].append(copy)

    def described(self, operand: Any, mask: Any) -> tuple[TensorMap, list[int]]:
        tensor_map = self.args[self.value(operand.map, mask) - MAP_BASE]
        coordinates = [self.value(c, mask) for c in operand.coordinates.elements]
        return tensor_map, [c - 2**32 if c >= 2**31 else c for c in coordinates]

    # -- groups ----------------------------------------------------------------------------------------------------

    def commit(self, opcode: str, operands: Any, mask: Any, warp: int) -> None:
        self.groups["wgmma" if opcode.startswith("wgmma") else "store"][warp].append([])

    def wait(self, opcode: str, operands: Any, mask: Any, warp: int) -> None:
        groups = self.groups["wgmma" if opcode.startswith("wgmma") else "store"][warp]
        while len(groups) - 1 > self.value(operands[0], mask):
            for work in groups.pop(0):
                work()

    def multiply(self, opcode: str, operands: Any, mask: Any, warp: int) -> None:
        """The warp's 16 rows of D (+)= A · Bᵀ."""
        assert mask[self.warp == warp].all(), "wgmma: a lane is elsewhere"
        d, a, b, scale = operands[0].elements, *(self.value(o, mask) for o in operands[1:4])
        assert [self.value(o, mask) for o in operands[4:]] == [1, 1, 0, 0]
        columns = 2 * len(d)
        lanes = np.flatnonzero(mask)

        def work() -> None:
            rows = 16 * (warp % 4) + np.arange(16)
            product = self.operand(a, rows) @ self.operand(b, np.arange(columns)).T
            lane = np.arange(32)
            for i, register in enumerate(d):
                row = lane // 4 + 8 * (i // 2 % 2)
                column = 8 * (i // 4) + 2 * (lane % 4) + i % 2
                values = np.zeros(self.n, np.float32)
                values[lanes] = product[row, column]
                if scale:
                    values += self.read(register, "f32", mask)
                self.write(register, encode(values, "f32"), mask)

        self.groups["wgmma"][warp][-1].append(work)

    def operand(self, descriptor: int, rows: np.ndarray) -> np.ndarray:
        """The 16 columns of these rows that a descriptor names, in fp32."""
        assert descriptor >> 62 == 1, "128-byte swizzle"
        start, stride = (descriptor & 0x3FFF) << 4, (descriptor >> 32 & 0x3FFF) << 4
        row = (start + rows // 8 * stride + rows % 8 * 128)[:, None]
        words = self.words()[(swizzled(row + 2 * np.arange(16)) - SHARED_BASE) // 2]
        return (words.astype(np.uint32) << 16).view(np.float32)


def swizzled(addresses: np.ndarray) -> np.ndarray:
    """Bits 4 to 6 of an address XORed with bits 7 to 9."""
    return addresses ^ ((addresses >> 7 & 7) << 4)


def elect(self: Machine, _: str, operands: Any, mask: Any, warp: int) -> None:
    first = np.zeros(self.n, bool)
    first[np.flatnonzero(mask)[0]] = True
    self.write(operands[0].second, encode(first, "pred"), mask)


HANDLERS: dict[str, Callable[..., None]] = {
    "mbarrier.init": Machine.init_barrier,
    "mbarrier.arrive": Machine.arrive,
    "mbarrier.try_wait.parity": Machine.try_wait,
    "cp.async.bulk.tensor.2d.shared": Machine.load_tile,
    "cp.async.bulk.tensor.2d.global": Machine.store_tile,
    "cp.async.bulk.commit_group": Machine.commit,
    "cp.async.bulk.wait_group": Machine.wait,
    "wgmma.mma_async": Machine.multiply,
    "wgmma.commit_group": Machine.commit,
    "wgmma.wait_group": Machine.wait,
    "wgmma.fence": Machine.nothing,
    "fence": Machine.nothing,
    "setmaxnreg": Machine.nothing,
    "bar.warp": Machine.nothing,
    "elect.sync": elect,
}
