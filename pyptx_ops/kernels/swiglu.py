"""SwiGLU: out = round(silu(gate) · up), silu(g) = g / (1 + 2^(−g · log2 e)), fp32 inside.

The output is dense; chunk i of it (one access) is chunk i mod per_row of row i // per_row. A thread takes `unroll`
chunks that lie a block apart, and has the loads of all of them in flight. Rows at and past offs[-1] come out zero and
their inputs are not read.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..dsl import Kernel, Pred, Reg, Var, ptx, special
from .configs import SwigluConfig
from .vector import ELEMENT_BYTES, Access, divide

__all__ = ["build"]

LOG2_E = 1.4426950408889634


@dataclass(frozen=True)
class Input:
    """An input in memory: element (row, column) is at base + row · pitch + column · step bytes."""

    base: Reg
    pitch: Reg
    step: Reg | int

    def address(self, row: Reg, chunk: Reg) -> Reg:
        return self.base + row * self.pitch + chunk * self.step


class Arguments:
    """The parameters, pointers first. `gate` holds pairs where there is no `up`; chunks are accesses of the output."""

    def __init__(self, k: Kernel, config: SwigluConfig):
        names = ("gate",) if config.layout == "pairs" else ("gate", "up")
        bases = [k.param(name, "pointer") for name in names]
        self.out = k.param("out", "pointer")
        self.offs = k.param("offs", "pointer")  # may be null
        self.groups = k.param("groups", "u32")
        self.rows = k.param("rows", "u64")
        self.per_row = k.param("per_row", "u64")
        self.reciprocal = k.param("per_row_reciprocal", "u64")
        inputs = [self._input(k, config, name, base) for name, base in zip(names, bases)]
        self.gate, self.up = inputs[0], inputs[1] if len(inputs) > 1 else None

    def _input(self, k: Kernel, config: SwigluConfig, name: str, base: Reg) -> Input:
        pitch = k.param(f"{name}_pitch", "i64").as_type("u64")
        nbytes = config.width * ELEMENT_BYTES
        if config.layout == "strided":
            return Input(base, pitch, k.param(f"{name}_step", "i64").as_type("u64"))
        return Input(base, pitch, 2 * nbytes if config.layout == "pairs" else nbytes)

    def used_rows(self, k: Kernel) -> Var:
        """offs[-1], within 0 … rows; all rows where there is no offs."""
        used = k.var("u64", self.rows)
        with k.if_(self.offs != 0):
            end = ptx.ld(self.offs + ptx.mul.wide(self.groups - 1, 4), space="global", type="s32")
            end = ptx.cvt(ptx.max(end, 0), type="s64", src="s32").as_type("u64")
            used.set(ptx.min(end, self.rows))
        return used


class Chunk:
    """One chunk of the output and what it is made of."""

    def __init__(self, k: Kernel, config: SwigluConfig, args: Arguments, index: Reg, used: Reg):
        self.args, self.access, self.pairs = args, Access(config.dtype, config.width), config.layout == "pairs"
        self.out = args.out + index * self.access.nbytes
        self.inside = index < args.rows * args.per_row
        row, column = divide(index, args.per_row, args.reciprocal)
        self._load(row, column, row < used)

    def _load(self, row: Reg, column: Reg, used: Pred) -> None:
        """Rows from `used` on, and so those past the end, stay zero."""
        args = self.args
        gate = args.gate.address(row, column)
        if args.up is not None:
            self.gate = self.access.load(gate, 0, used)
            self.up = self.access.load(args.up.address(row, column), 0, used)
        else:
            nbytes = self.access.nbytes
            self.gate = self.access.load(gate, 0, used)
            self.up = self.access.load(gate, nbytes, used)

    def store(self) -> None:
        gate, up = self.access.unpack(self.gate), self.access.unpack(self.up)
        if self.pairs:  # both loads hold gate, up, gate, up, …
            both = gate + up
            gate, up = both[::2], both[1::2]
        words = self.access.pack([silu(g) * u for g, u in zip(gate, up)])
        self.access.store(self.out, 0, words, self.inside)


def silu(gate: Reg) -> Reg:
    """gate · sigmoid(gate): −0 for large negative numbers, NaN for −inf, as x / (1 + exp(−x)) gives."""
    sigmoid = ptx.rcp.approx(ptx.ex2.approx(gate * -LOG2_E, ftz=True) + 1.0, ftz=True)
    return gate * sigmoid


def build(config: SwigluConfig) -> Kernel:
    """The kernel of a config."""
    with Kernel(config.name, block=(config.block, 1, 1)) as k:
        args = Arguments(k, config)
        used = args.used_rows(k)
        thread = ptx.cvt(ptx.mov(special("tid.x"), type="u32"), type="u64", src="u32")
        first = ptx.mul.wide(ptx.mov(special("ctaid.x"), type="u32"), config.block * config.unroll) + thread
        chunks = [Chunk(k, config, args, first + i * config.block, used) for i in range(config.unroll)]
        for chunk in chunks:
            chunk.store()
        ptx.ret()
    return k
