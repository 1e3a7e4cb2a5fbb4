"""Runs traced kernels on NumPy, one cluster of blocks at a time, so that their logic is tested where there is no GPU.

A cluster's threads go in lockstep: the lowest program counter first, which brings branches back together. It knows the
instructions of ordinary threads (arithmetic, loads and stores, shuffles, barriers), checks every address for bounds and
alignment and every register for having been written, and knows nothing of time, races or asynchronous copies.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyptx_ops.dsl import Kernel
from pyptx_ops.dsl.ir import Address, Directive, Immediate, Instruction, Label, Negated, Register, Symbol, Vector

__all__ = ["Memory", "run"]

Words = NDArray[np.uint64]
SHARED_BASE, SHARED_WINDOW = 1024, 1 << 24
RUNNING, AT_BLOCK, AT_CLUSTER = 0, 1, 2


class Memory:
    """Global memory: arrays at addresses of their own. `add` gives the address; reads and writes go to the arrays."""

    def __init__(self) -> None:
        self.bases: list[int] = []
        self.arrays: list[NDArray[np.uint8]] = []
        self.next = 1 << 32

    def add(self, array: NDArray[Any], at: int | None = None) -> int:
        """Place a contiguous array, at a multiple of 256 bytes by default."""
        base = self.next if at is None else at
        view = array.reshape(-1).view(np.uint8)
        assert np.shares_memory(view, array) or not array.size
        index = int(np.searchsorted(self.bases, base))
        self.bases.insert(index, base)
        self.arrays.insert(index, view)
        self.next = max(self.next, (base + view.size + 1024) // 256 * 256)
        return base

    def access(self, addresses: Words, nbytes: int, value: NDArray[np.uint8] | None = None) -> NDArray[np.uint8]:
        """Read `nbytes` at each address, or write `value` there."""
        if (addresses % np.uint64(nbytes)).any():
            raise AssertionError(
                f"an address is no multiple of {nbytes}: {addresses[addresses % np.uint64(nbytes) != 0][0]:#x}"
            )
        result = np.zeros((len(addresses), nbytes), np.uint8) if value is None else value
        which = np.searchsorted(np.array(self.bases, np.uint64), addresses, side="right") - 1
        for segment in np.unique(which):
            chosen = which == segment
            start = (addresses[chosen] - np.uint64(self.bases[segment] if segment >= 0 else 0)).astype(np.int64)
            if segment < 0 or (start + nbytes > self.arrays[segment].size).any():
                raise AssertionError(f"an access of {nbytes} bytes out of bounds near {addresses[chosen].max():#x}")
            index = start[:, None] + np.arange(nbytes)
            if value is None:
                result[chosen] = self.arrays[segment][index]
            else:
                self.arrays[segment][index] = value[chosen]
        return result


def run(kernel: Kernel, memory: Memory, grid: tuple[int, int], args: Sequence[int | float]) -> None:
    """Launch a grid of blocks, (x, y). args: one value per parameter."""
    assert len(args) == len(kernel.params), f"{len(kernel.params)} parameters, {len(args)} values"
    program = Program(kernel)
    assert grid[0] % program.cluster == 0, f"{grid[0]} blocks are no clusters of {program.cluster}"
    for y in range(grid[1]):
        for x in range(0, grid[0], program.cluster):
            Cluster(program, memory, (x, y), grid, args).run()


class Program:
    """A kernel's statements with its labels resolved."""

    def __init__(self, kernel: Kernel):
        module = kernel.module()
        self.threads, self.cluster = math.prod(kernel.block), kernel.cluster[0]
        self.params = {f"param_{p.name}": (i, p.kind) for i, p in enumerate(kernel.params)}
        self.code: list[Instruction] = []
        self.labels: dict[str, int] = {}
        self.shared: dict[str, int] = {}
        self.shared_bytes = 0
        for statement in module.statements[-1].body.body:  # type: ignore[union-attr]
            if isinstance(statement, Instruction):
                self.code.append(statement)
            elif isinstance(statement, Label):
                self.labels[statement.name] = len(self.code)
        for statement in module.statements:
            if isinstance(statement, Directive) and statement.tokens[0] == ".shared":
                name, _, size = statement.tokens[-1].rstrip("];").partition("[")
                self.shared[name] = SHARED_BASE + self.shared_bytes
                self.shared_bytes += (int(size) + 15) // 16 * 16


class Cluster:
    """A cluster of blocks: their registers, their shared memory and where each thread is.

    Block r has its shared memory at SHARED_WINDOW · (r + 1) for the cluster; its own addresses are below SHARED_WINDOW.
    """

    def __init__(
        self,
        program: Program,
        memory: Memory,
        index: tuple[int, int],
        grid: tuple[int, int],
        args: Sequence[int | float],
    ):
        n = program.threads * program.cluster
        self.program, self.memory, self.args, self.n = program, memory, args, n
        self.rank, thread = np.divmod(np.arange(n, dtype=np.uint64), np.uint64(program.threads))
        self.special = {
            "%tid.x": thread, "%laneid": thread % np.uint64(32), "%cluster_ctarank": self.rank,
            "%ctaid.x": np.uint64(index[0]) + self.rank, "%ctaid.y": np.full(n, index[1], np.uint64),
            "%nctaid.x": np.full(n, grid[0], np.uint64), "%nctaid.y": np.full(n, grid[1], np.uint64),
        }  # fmt: skip
        self.registers: dict[str, Words] = {}
        self.shared = Memory()
        for rank in range(program.cluster):
            self.shared.add(np.full(program.shared_bytes, 0xFF, np.uint8), at=SHARED_WINDOW * (rank + 1) + SHARED_BASE)
        self.pc = np.zeros(n, np.int64)
        self.waiting = np.zeros(n, np.int64)  # at the barrier of the block, of the cluster, or at none

    def run(self) -> None:
        end = len(self.program.code)
        with np.errstate(all="ignore"):
            while True:
                alive = self.pc < end
                ready = alive & (self.waiting == RUNNING)
                if not alive.any():
                    return
                if not ready.any():
                    self.release(alive)
                    continue
                pc = int(self.pc[ready].min())
                self.step(pc, ready & (self.pc == pc))

    def release(self, alive: NDArray[np.bool_]) -> None:
        """Let the threads go on for whom everybody else has come."""
        blocks = [self.rank == rank for rank in range(self.program.cluster)]
        before = self.waiting.copy()
        for block in blocks:
            if (self.waiting[block & alive] == AT_BLOCK).all():
                self.waiting[block] = RUNNING
        if (self.waiting[alive] == AT_CLUSTER).all():
            self.waiting[:] = RUNNING
        assert (before != self.waiting).any(), "deadlock: threads wait at barriers that others never reach"

    def step(self, pc: int, mask: NDArray[np.bool_]) -> None:
        instruction = self.program.code[pc]
        self.pc[mask] += 1
        if instruction.guard is not None:
            mask = mask & self.read(instruction.guard, "pred", mask).astype(bool)
            if not mask.any():
                return
        head, *parts = instruction.opcode.split(".")
        operands = instruction.operands
        if head == "bra":
            self.pc[mask] = self.program.labels[operands[0].name]  # type: ignore[union-attr]
        elif head in ("ret", "exit"):
            self.pc[mask] = len(self.program.code)
        elif head == "bar":
            self.waiting[mask] = AT_BLOCK
        elif head == "barrier":  # of the cluster; nobody runs ahead of an arrival here, so only waiting counts
            if parts[1] == "wait":
                self.waiting[mask] = AT_CLUSTER
        elif head == "mapa":
            rank = self.bits(operands[2], mask)
            assert (rank[mask] < self.program.cluster).all(), "mapa: no such block in the cluster"
            self.write(
                operands[0], self.bits(operands[1], mask) + np.uint64(SHARED_WINDOW) * (rank + np.uint64(1)), mask
            )
        elif head in ("ld", "st"):
            self.memory_access(head, parts, operands, mask)
        elif head == "shfl":
            self.shuffle(parts, operands, mask)
        elif head == "mov" and isinstance(operands[0], Vector):
            word = self.read(operands[1], "u32", mask)
            self.write(operands[0].elements[0], word & np.uint64(0xFFFF), mask)
            self.write(operands[0].elements[1], word >> np.uint64(16), mask)
        else:
            self.compute(head, parts, operands, mask)

    # -- operands ---------------------------------------------------------------------------------------------------

    def read(self, operand: Any, type: str, mask: NDArray[np.bool_]) -> Any:
        """The bits of an operand in every thread, as the NumPy type of a PTX type."""
        return decode(self.bits(operand, mask), type)

    def bits(self, operand: Any, mask: NDArray[np.bool_]) -> Words:
        if isinstance(operand, Negated):
            return self.bits(operand.operand, mask) ^ np.uint64(1)
        if isinstance(operand, Immediate):
            text = operand.text
            value = int(text[2:], 16) if text[:2] in ("0f", "0d") else int(text, 0)
            return np.full(self.n, value % 2**64, np.uint64)
        if isinstance(operand, Symbol):
            return np.full(self.n, self.program.shared[operand.name], np.uint64)
        assert isinstance(operand, Register)
        if operand.name in self.special:
            return self.special[operand.name]
        assert operand.name in self.registers, f"{operand.name} is read before it is written"
        return self.registers[operand.name]

    def write(self, operand: Any, value: Any, mask: NDArray[np.bool_]) -> None:
        register = self.registers.setdefault(operand.name, np.zeros(self.n, np.uint64))
        np.copyto(register, value, where=mask)

    # -- instructions -----------------------------------------------------------------------------------------------

    def compute(self, head: str, parts: list[str], operands: tuple[Any, ...], mask: NDArray[np.bool_]) -> None:
        if head == "cvt":
            source = parts[-1]
            values = [self.read(o, source, mask) for o in operands[1:]]
            result = pack(values, parts[-2]) if parts[-2].endswith("x2") else convert(values[0], parts[-2])
            self.write(operands[0], result, mask)
            return
        if head == "cvta":
            self.write(operands[0], self.bits(operands[1], mask), mask)
            return
        kind = parts[-1]
        types = [kind] * (len(operands) - 1)
        if head in ("shl", "shr"):
            types[1] = "u32"
        if head == "selp":
            types[2] = "pred"
        values = [self.read(o, t, mask) for o, t in zip(operands[1:], types, strict=True)]
        if head == "setp":
            self.write(operands[0], encode(COMPARE[parts[0]](*values), "pred"), mask)
        elif head == "mul" and parts[0] == "wide":
            wide = values[0].astype(np.int64) * values[1].astype(np.int64)
            self.write(operands[0], wide.astype(np.uint64), mask)
        elif head == "mul" and parts[0] == "hi":
            high = [(int(a) * int(b)) >> int(kind[1:]) for a, b in zip(*values, strict=True)]
            self.write(operands[0], np.array(high, object).astype(np.uint64), mask)
        else:
            self.write(operands[0], encode(ARITHMETIC[head](*values), kind), mask)

    def memory_access(self, head: str, parts: list[str], operands: tuple[Any, ...], mask: NDArray[np.bool_]) -> None:
        address, data = (operands[1], operands[0]) if head == "ld" else operands
        size = int(parts[-1][1:]) // 8
        if parts[0] == "param":
            self.load_param(address, data, parts[-1], mask)
            return
        assert isinstance(address, Address)
        addresses = (self.bits(address.base, mask) + np.uint64(int(address.offset or 0) % 2**64))[mask]
        space = self.memory if parts[0] == "global" else self.shared
        if space is self.shared:  # a block's own addresses lie below the first window
            own = addresses < np.uint64(SHARED_WINDOW)
            addresses = addresses + np.where(
                own, np.uint64(SHARED_WINDOW) * (self.rank[mask] + np.uint64(1)), np.uint64(0)
            )
        registers = data.elements if isinstance(data, Vector) else (data,)
        total = size * len(registers)
        if head == "ld":
            raw = space.access(addresses, total).reshape(-1, len(registers), size)
            wide = np.zeros((*raw.shape[:2], 8), np.uint8)
            wide[..., :size] = raw
            for i, register in enumerate(registers):
                value = np.zeros(self.n, np.uint64)
                value[mask] = wide[:, i].copy().view(np.uint64)[:, 0]
                self.write(register, value, mask)
            return
        words = [self.bits(r, mask)[mask].copy().view(np.uint8).reshape(-1, 8)[:, :size] for r in registers]
        space.access(addresses, total, np.concatenate(words, axis=1))

    def load_param(self, address: Any, register: Any, type: str, mask: NDArray[np.bool_]) -> None:
        index, _ = self.program.params[address.base.name]
        value = self.args[index]
        bits = int(np.float32(value).view(np.uint32)) if type == "f32" else int(value) % 2 ** int(type[1:])
        self.write(register, np.full(self.n, bits, np.uint64), mask)

    def shuffle(self, parts: list[str], operands: tuple[Any, ...], mask: NDArray[np.bool_]) -> None:
        assert (mask.reshape(-1, 32).all(1) == mask.reshape(-1, 32).any(1)).all(), "shfl.sync: a lane is elsewhere"
        lane = self.special["%laneid"].astype(np.int64)
        distance = self.read(operands[2], "u32", mask).astype(np.int64)
        source = {"bfly": lane ^ distance, "idx": distance, "up": lane - distance, "down": lane + distance}[parts[1]]
        source = np.where((source < 0) | (source > 31), lane, source)
        thread = np.arange(self.n) - lane + source
        self.write(operands[0], self.bits(operands[1], mask)[thread], mask)


# -- values ---------------------------------------------------------------------------------------------------------


def decode(bits: Words, type: str) -> Any:
    if type == "pred":
        return bits.astype(bool)
    size = int(type.lstrip("usbf"))
    if type == "bf16":
        return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
    unsigned = bits.astype(f"u{size // 8}")
    prefix = {"f": "f", "s": "i"}.get(type[0], "u")
    return unsigned.view(f"{prefix}{size // 8}")


def encode(value: Any, type: str) -> Words:
    if type == "pred":
        return value.astype(np.uint64)
    size = int(type.lstrip("usbf")) // 8
    prefix = {"f": "f", "s": "i"}.get(type[0], "u")
    return np.ascontiguousarray(value.astype(f"{prefix}{size}")).view(f"u{size}").astype(np.uint64)


def round_bf16(value: NDArray[np.float32]) -> Words:
    bits = value.view(np.uint32).astype(np.uint64)
    rounded = (bits + np.uint64(0x7FFF) + ((bits >> np.uint64(16)) & np.uint64(1))) >> np.uint64(16)
    return np.where(np.isnan(value), np.uint64(0x7FFF), rounded & np.uint64(0xFFFF))


def pack(values: list[Any], type: str) -> Words:
    """Two fp32 as one word, the second in the low half."""
    high, low = [round_bf16(v) if type == "bf16x2" else encode(v, "f16") for v in values]
    return (high << np.uint64(16)) | low


def convert(value: Any, type: str) -> Words:
    return round_bf16(value.astype(np.float32)) if type == "bf16" else encode(value, type)


def fma(a: Any, b: Any, c: Any) -> Any:
    return (a.astype(np.float64) * b + c).astype(np.float32)


ARITHMETIC: dict[str, Callable[..., Any]] = {
    "mov": lambda a: a, "neg": lambda a: -a, "not": lambda a: ~a,
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b,
    "div": lambda a, b: a // b, "rem": lambda a, b: a % b, "fma": fma,
    "min": np.minimum, "max": np.maximum,
    "and": lambda a, b: a & b, "or": lambda a, b: a | b, "xor": lambda a, b: a ^ b,
    "shl": lambda a, b: a << b, "shr": lambda a, b: a >> b,
    "selp": lambda a, b, c: np.where(c, a, b),
    "ex2": lambda a: np.exp2(a.astype(np.float64)).astype(np.float32),
    "rcp": lambda a: (1 / a.astype(np.float64)).astype(np.float32),
    "rsqrt": lambda a: (1 / np.sqrt(a.astype(np.float64))).astype(np.float32),
}  # fmt: skip

COMPARE: dict[str, Callable[..., Any]] = {
    "eq": lambda a, b: a == b, "ne": lambda a, b: a != b, "lt": lambda a, b: a < b, "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b, "ge": lambda a, b: a >= b, "lo": lambda a, b: a < b, "hs": lambda a, b: a >= b,
}  # fmt: skip
