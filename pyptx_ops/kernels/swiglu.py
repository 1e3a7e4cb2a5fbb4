"""SwiGLU and its gradients, fp32 inside, each result rounded once:

    out = silu(gate) · up,   silu(g) = g · s(g),   s(g) = 1 / (1 + 2^(−g · log2 e))
    d_up = dy · silu(gate),   d_gate = dy · up · (s(gate) + silu(gate) · (1 − s(gate)))

Chunk i (one access of an operand) is chunk i mod per_row of row i // per_row. A thread takes `unroll` chunks that lie a
block apart, and has the loads of all of them in flight. Results are zero in rows at and past offs[-1], whose inputs are
not read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..dsl import Kernel, Pred, Reg, Var, ptx, special
from .configs import SwigluConfig
from .vector import ELEMENT_BYTES, Access, divide

__all__ = ["build"]

LOG2_E = 1.4426950408889634


@dataclass(frozen=True)
class Operand:
    """A tensor in memory: element (row, column) is at base + row · pitch + column · step bytes.

    One that holds pairs has two accesses to a chunk, one behind the other.
    """

    access: Access
    base: Reg
    pitch: Reg
    step: Reg | int
    pairs: bool

    def address(self, row: Reg, chunk: Reg) -> Reg:
        return self.base + row * self.pitch + chunk * self.step

    def load(self, row: Reg, chunk: Reg, pred: Pred) -> list[list[Reg]]:
        """The words of each access; zero where `pred` does not hold."""
        address = self.address(row, chunk)
        return [self.access.load(address, i * self.access.nbytes, pred) for i in range(1 + self.pairs)]


class Arguments:
    """The parameters, pointers first. Chunks are accesses; `out`, of the forward pass, is dense."""

    def __init__(self, k: Kernel, config: SwigluConfig):
        parts = ("gate",) if config.layout == "pairs" else ("gate", "up")
        gradients = tuple(f"d_{name}" for name in parts) if config.backward else ()
        names = (*parts, "dy", *gradients) if config.backward else parts
        bases = [k.param(name, "pointer") for name in names]
        self.out = None if config.backward else k.param("out", "pointer")
        self.offs = k.param("offs", "pointer")  # may be null
        self.groups = k.param("groups", "u32")
        self.rows = k.param("rows", "u64")
        self.per_row = k.param("per_row", "u64")
        self.reciprocal = k.param("per_row_reciprocal", "u64")
        operands = {name: self._operand(k, config, name, base) for name, base in zip(names, bases)}
        self.inputs = [operands[name] for name in names if name not in gradients]
        self.gradients = [operands[name] for name in gradients]

    def _operand(self, k: Kernel, config: SwigluConfig, name: str, base: Reg) -> Operand:
        access, pairs = Access(config.dtype, config.width), config.layout == "pairs" and name != "dy"
        pitch = k.param(f"{name}_pitch", "i64").as_type("u64")
        if config.layout == "strided":
            return Operand(access, base, pitch, k.param(f"{name}_step", "i64").as_type("u64"), pairs)
        return Operand(access, base, pitch, access.nbytes * (1 + pairs), pairs)

    def used_rows(self, k: Kernel) -> Var:
        """offs[-1], within 0 … rows; all rows where there is no offs."""
        used = k.var("u64", self.rows)
        with k.if_(self.offs != 0):
            end = ptx.ld(self.offs + ptx.mul.wide(self.groups - 1, 4), space="global", type="s32")
            end = ptx.cvt(ptx.max(end, 0), type="s64", src="s32").as_type("u64")
            used.set(ptx.min(end, self.rows))
        return used


class Chunk:
    """One chunk of the rows: what is loaded for it, and what is stored."""

    def __init__(self, config: SwigluConfig, args: Arguments, index: Reg, used: Reg):
        self.args, self.access, self.pairs = args, Access(config.dtype, config.width), config.layout == "pairs"
        dense = [] if args.out is None else [args.out + index * self.access.nbytes]
        self.inside = index < args.rows * args.per_row
        row, column = divide(index, args.per_row, args.reciprocal)
        loads = row < used  # rows from there on, and so those past the end, stay zero
        self.loaded = [words for operand in args.inputs for words in operand.load(row, column, loads)]
        self.targets = dense or [operand.address(row, column) for operand in args.gradients]

    def store(self) -> None:
        gate, up, *dy = map(self.access.unpack, self.loaded)
        if self.pairs:  # both loads hold gate, up, gate, up, …
            both = gate + up
            gate, up = both[::2], both[1::2]
        if self.args.out is not None:
            self._store(self.targets[0], [silu(g)[0] * u for g, u in zip(gate, up)])
            return
        results = [gradients(g, u, d) for g, u, d in zip(gate, up, dy[0])]
        if self.pairs:
            self._store(self.targets[0], [value for pair in results for value in pair])
        else:
            for target, values in zip(self.targets, zip(*results)):
                self._store(target, values)

    def _store(self, target: Reg, values: Sequence[Reg]) -> None:
        """One access after the other."""
        for i in range(0, len(values), self.access.width):
            words = self.access.pack(values[i : i + self.access.width])
            self.access.store(target, i * ELEMENT_BYTES, words, self.inside)


def silu(gate: Reg) -> tuple[Reg, Reg]:
    """(gate · sigmoid(gate), sigmoid(gate)); −0 for large negative numbers, NaN for −inf, as x / (1 + exp(−x)) is."""
    sigmoid = ptx.rcp.approx(ptx.ex2.approx(gate * -LOG2_E, ftz=True) + 1.0, ftz=True)
    return gate * sigmoid, sigmoid


def gradients(gate: Reg, up: Reg, dy: Reg) -> tuple[Reg, Reg]:
    """(d_gate, d_up)."""
    value, sigmoid = silu(gate)
    slope = ptx.fma(value, 1.0 - sigmoid, sigmoid, rnd="rn")
    return dy * up * slope, dy * value


def build(config: SwigluConfig) -> Kernel:
    """The kernel of a config."""
    with Kernel(config.name, block=(config.block, 1, 1)) as k:
        args = Arguments(k, config)
        used = args.used_rows(k)
        thread = ptx.cvt(ptx.mov(special("tid.x"), type="u32"), type="u64", src="u32")
        first = ptx.mul.wide(ptx.mov(special("ctaid.x"), type="u32"), config.block * config.unroll) + thread
        chunks = [Chunk(config, args, first + i * config.block, used) for i in range(config.unroll)]
        for chunk in chunks:
            chunk.store()
        ptx.ret()
    return k
