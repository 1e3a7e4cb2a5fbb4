"""RMSNorm, with or without a residual: y = round(v · rstd · (weight + offset)), v = x (+ residual) in fp32.

    rstd = 1 / sqrt(mean(v²) + eps)

A row is shared by a team of threads: part of a warp, a warp, a block or a cluster of blocks. Chunk c of a row (one
access) belongs to thread c mod team, so that neighbouring threads touch neighbouring chunks. The first `vectors` chunks
of a thread stay in registers between the two passes:

    load x, residual, the first weights ──► v, Σ v² per thread ──► sum over the row ──► scale, round, store
                                            └► store round(v)     (shuffles, shared memory, that of the cluster)

A wide row's other chunks are read once for the sum and, from L2, once more for the result. How a row's sum is ordered
depends on its config only, and that on its width and alignment only: never on the other rows. In place works: a thread
writes what it alone has read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ..dsl import Kernel, Pred, Reg, Var, ptx, special
from .configs import WARP, RmsNormConfig
from .vector import ELEMENT_BYTES, Access, butterfly_sum, declare_strides, divide, zeros

__all__ = ["build"]

CHAINS = 4  # independent sums of a thread: a shorter chain of dependent additions, and a smaller error

WEIGHT_NONE, WEIGHT_SAME = 0, 1  # 2: an fp32 weight


@dataclass(frozen=True)
class Operand:
    """A matrix of rows in memory: row (outer, inner) is at base + outer · outer_stride + inner · inner_stride bytes."""

    base: Reg
    outer_stride: Reg
    inner_stride: Reg

    def row(self, k: Kernel, outer: Reg, inner: Reg, split: Pred, offset: Reg) -> Reg:
        """The address of `offset` bytes into a row; `outer` is 0 unless `split` holds."""
        address = k.var("u64", self.base + offset + inner * self.inner_stride)
        with k.if_(split):
            address += outer * self.outer_stride
        return address


class Arguments:
    """The parameters: what changes from call to call first.

    Rows 0 … rows − 1 are (row // per_outer, row % per_outer) of each operand; chunks of a row are accesses.
    """

    def __init__(self, k: Kernel, config: RmsNormConfig):
        names = ("x", "y", "residual", "residual_out") if config.residual else ("x", "y")
        bases = [k.param(name, "pointer") for name in names]
        self.weight = k.param("weight", "pointer")
        self.eps = k.param("eps", "f32")
        self.weight_offset = k.param("weight_offset", "f32")
        self.cast = k.param("cast_before_weight", "u32") != 0
        weight_kind = k.param("weight_kind", "u32")
        self.has_weight = weight_kind != WEIGHT_NONE
        self.weight_is_same = weight_kind == WEIGHT_SAME
        self.rows = k.param("rows", "u64")
        self.per_outer = k.param("per_outer", "u64")
        self.reciprocal = k.param("per_outer_reciprocal", "u64")
        self.chunks = k.param("chunks", "u32")
        self.inverse_hidden = k.param("inverse_hidden", "f32")
        operands = [Operand(base, *declare_strides(k, name)) for base, name in zip(bases, names)]
        self.x, self.y = operands[:2]
        self.residual: Operand | None = operands[2] if config.residual else None
        self.residual_out: Operand | None = operands[3] if config.residual else None


@dataclass(frozen=True)
class Row:
    """Where a thread finds its first chunk of the row that it works on; the others are `team` chunks apart."""

    x: Reg
    y: Reg
    residual: Reg | None
    residual_out: Reg | None
    weight: Reg  # of the weight's own element size

    def moved(self, nbytes: Reg, weight_bytes: Reg) -> Row:
        residual = self.residual + nbytes if self.residual is not None else None
        residual_out = self.residual_out + nbytes if self.residual_out is not None else None
        return Row(self.x + nbytes, self.y + nbytes, residual, residual_out, self.weight + weight_bytes)


class Weights:
    """The weights of one chunk: of the dtype of x or fp32, as the kernel is told when it runs.

    Of the dtype of x they are loaded early and wait as they are; fp32 ones take more registers and come when needed.
    """

    def __init__(self, k: Kernel, access: Access, args: Arguments, address: Reg, offset: int, pred: Pred):
        self.k, self.access, self.args = k, access, args
        self.address, self.offset, self.pred = address, offset, pred  # the offset is that of the dtype of x
        self.words = zeros(access.words)

    def load(self) -> None:
        """Start loading weights of the dtype of x."""
        with self.k.if_(self.args.weight_is_same):
            self.access.load_kept(self.address, self.offset, self.words, self.pred)

    def factors(self) -> list[Var]:
        """weight + offset in fp32."""
        k = self.k
        factors = [k.var("f32", 0.0) for _ in range(self.access.width)]
        with k.if_(self.args.weight_is_same):
            for factor, value in zip(factors, self.access.unpack(self.words)):
                factor.set(value)
        with k.else_():
            for part in range(0, self.access.width, 4):
                self._load_f32(factors[part : part + 4], 2 * self.offset + 4 * part)
        for factor in factors:
            factor += self.args.weight_offset
        return factors

    def _load_f32(self, out: list[Var], offset: int) -> None:
        one = len(out) == 1
        ptx.ld(
            self.address.at(offset), space="global", nc=True, vec=None if one else f"v{len(out)}", type="f32",
            out=out[0] if one else out, pred=self.pred,
        )  # fmt: skip


class Chunks:
    """`count` chunks of a thread, `team` apart, from the chunk at `row`: loaded, summed, scaled and stored."""

    def __init__(
        self, k: Kernel, config: RmsNormConfig, args: Arguments, row: Row, first: Reg, count: int, chunks: Reg
    ):
        self.k, self.config, self.args, self.row = k, config, args, row
        self.access = Access(config.dtype, config.width)
        self.group = (4 if config.wide else 8) // self.access.words  # chunks whose weights are in flight at once
        self.valid = [(first + i * config.team if i else first) < chunks for i in range(count)]
        self.offsets = [i * config.team * self.access.nbytes for i in range(count)]

    def load(self) -> None:
        """All loads first, so that they are in flight together."""
        self.words = self._load(self.row.x)
        self.added = self._load(self.row.residual) if self.row.residual is not None else []
        self.sums: list[list[Reg]] = []

    def _load(self, address: Reg) -> list[list[Reg]]:
        return [self.access.load(address, offset, pred) for offset, pred in zip(self.offsets, self.valid)]

    def add_residual(self) -> None:
        """v = x + residual, unrounded."""
        unpack = self.access.unpack
        for x, residual in zip(self.words, self.added):
            self.sums.append([a + b for a, b in zip(unpack(x), unpack(residual))])

    def values(self, i: int) -> list[Reg]:
        """v of chunk i in fp32."""
        return self.sums[i] if self.sums else self.access.unpack(self.words[i])

    def square_into(self, chains: list[Var]) -> None:
        for i in range(len(self.valid)):
            for j, value in enumerate(self.values(i)):
                chain = chains[(i * self.access.width + j) % CHAINS]
                ptx.fma(value, value, chain, rnd="rn", out=chain)

    def store_sum(self) -> None:
        """residual_out = round(v)."""
        if self.row.residual_out is not None:
            for i, pred in enumerate(self.valid):
                self.access.store(self.row.residual_out, self.offsets[i], self.access.pack(self.values(i)), pred)

    def load_weights(self, first: int) -> list[Weights]:
        """Start loading the weights of the group of chunks that starts at `first`."""
        chosen = range(first, min(first + self.group, len(self.valid)))
        at = self.row.weight
        weights = [Weights(self.k, self.access, self.args, at, self.offsets[i], self.valid[i]) for i in chosen]
        for weight in weights:
            weight.load()
        return weights

    def store_normalized(self, rstd: Reg, first_weights: list[Weights]) -> None:
        """y, group by group; the weights of the first group were loaded before."""
        for first in range(0, len(self.valid), self.group):
            for i, weight in enumerate(self.load_weights(first) if first else first_weights, first):
                self._store_one(i, rstd, weight)

    def _store_one(self, i: int, rstd: Reg, weight: Weights) -> None:
        k, access = self.k, self.access
        normal = [value * rstd for value in self.values(i)]
        words = [k.var("b32") for _ in range(access.words)]
        with k.if_(self.args.has_weight):
            factors = weight.factors()
            unit = [k.var("f32", value) for value in normal]
            with k.if_(self.args.cast):
                for value, rounded in zip(unit, access.unpack(access.pack(normal))):
                    value.set(rounded)
            set_all(words, access.pack([value * factor for value, factor in zip(unit, factors)]))
        with k.else_():
            set_all(words, access.pack(normal))
        access.store(self.row.y, self.offsets[i], words, self.valid[i])


def set_all(variables: list[Var], values: list[Reg]) -> None:
    for variable, value in zip(variables, values):
        variable.set(value)


class RowSum:
    """Adds one fp32 per thread over the team of a row, in one order: lanes, then warps, then blocks of the cluster."""

    def __init__(self, k: Kernel, config: RmsNormConfig, position: Position):
        self.config, self.position = config, position
        self.warps = config.threads // WARP
        self.lane = position.thread & (WARP - 1)
        if self.warps > 1:
            self.per_warp = k.shared_array("per_warp", 4 * self.warps)
        if config.cluster > 1:
            self.per_block = k.shared_array("per_block", 4 * config.cluster)
            ptx.barrier.cluster.arrive(sem="relaxed", aligned=True)  # this block runs: others may write to it

    def __call__(self, value: Reg) -> Reg:
        """The sum, the same bits in every thread of the team."""
        value = butterfly_sum(value, min(self.config.threads, WARP))
        if self.warps > 1:
            value = self._over_warps(value)
        return self._over_blocks(value) if self.config.cluster > 1 else value

    def _over_warps(self, value: Reg) -> Reg:
        base = ptx.mov(self.per_warp, type="u32")
        ptx.st(base + ((self.position.thread >> 5) << 2), value, space="shared", type="f32", pred=self.lane == 0)
        ptx.bar.sync(0)
        return butterfly_sum(self._slot(base, self.warps), self.warps)

    def _over_blocks(self, value: Reg) -> Reg:
        """Thread i tells block i of the cluster."""
        cluster, thread = self.config.cluster, self.position.thread
        base = ptx.mov(self.per_block, type="u32")
        place = ptx.mapa(base + (self.position.rank << 2), thread & (cluster - 1), type="u32")
        ptx.barrier.cluster.wait(sem="acquire", aligned=True)
        ptx.st(place, value, space="shared::cluster", type="f32", pred=thread < cluster)
        ptx.barrier.cluster.arrive(sem="release", aligned=True)
        ptx.barrier.cluster.wait(sem="acquire", aligned=True)
        return butterfly_sum(self._slot(base, cluster), cluster)

    def _slot(self, base: Reg, slots: int) -> Reg:
        """Lane i gets the (i mod slots)-th partial sum."""
        return ptx.ld(base + ((self.lane & (slots - 1)) << 2), space="shared", type="f32")


class Position:
    """Which row a thread works on, and which member of its team it is."""

    def __init__(self, k: Kernel, config: RmsNormConfig, args: Arguments):
        self.k, self.args = k, args
        self.thread = ptx.mov(special("tid.x"), type="u32")
        self.member = self.thread & (config.threads - 1)
        if config.cluster > 1:
            self.rank = ptx.mov(special("cluster_ctarank"), type="u32")
            self.member = self.member + self.rank * config.threads
        self.index, self.chunks = self._row(config)
        nbytes = config.width * ELEMENT_BYTES
        self.offset = ptx.mul.wide(self.member, nbytes)  # of its first chunk in the row
        self.weight_bytes = ptx.selp(nbytes, 2 * nbytes, args.weight_is_same, type="u32")  # of a chunk

    def _row(self, config: RmsNormConfig) -> tuple[Reg, Reg]:
        """(row, how many chunks it has): none past the last row."""
        args = self.args
        x, y, width = (ptx.mov(special(name), type="u32") for name in ("ctaid.x", "ctaid.y", "nctaid.x"))
        block = ptx.mul.wide(y, width) + ptx.cvt(x, type="u64", src="u32")
        if config.cluster > 1:
            block = block >> (config.cluster.bit_length() - 1)
        if config.rows == 1:
            return block, ptx.selp(args.chunks, 0, block < args.rows)
        group = self.thread >> (config.threads.bit_length() - 1)
        index = block * config.rows + ptx.cvt(group, type="u64", src="u32")
        return index, ptx.selp(args.chunks, 0, index < args.rows)

    def row(self) -> Row:
        k, args = self.k, self.args
        outer, inner = k.var("u64", 0), k.var("u64", self.index)
        split = args.per_outer < args.rows
        with k.if_(split):
            quotient, remainder = divide(self.index, args.per_outer, args.reciprocal)
            outer.set(quotient)
            inner.set(remainder)

        def address(operand: Operand) -> Reg:
            return operand.row(k, outer, inner, split, self.offset)

        residual = address(args.residual) if args.residual is not None else None
        residual_out = address(args.residual_out) if args.residual_out is not None else None
        weight = args.weight + ptx.mul.wide(self.member, self.weight_bytes)
        return Row(address(args.x), address(args.y), residual, residual_out, weight)


class Tail:
    """The chunks of a wide row past those in registers, `count` per thread and turn."""

    def __init__(self, k: Kernel, config: RmsNormConfig, args: Arguments, position: Position, row: Row):
        self.k, self.config, self.args, self.position, self.row = k, config, args, position, row
        self.count = (4 if config.residual else 8) // Access(config.dtype, config.width).words

    def turns(self) -> Iterator[Chunks]:
        config, position = self.config, self.position
        for done in self.k.range(config.team * config.vectors, position.chunks, config.team * self.count):
            moved = ptx.mul.wide(done, config.width * ELEMENT_BYTES), ptx.mul.wide(done, position.weight_bytes)
            first = done + position.member
            chunks = Chunks(self.k, config, self.args, self.row.moved(*moved), first, self.count, position.chunks)
            chunks.load()
            chunks.add_residual()
            yield chunks


def build(config: RmsNormConfig) -> Kernel:
    """The kernel of a config."""
    shape: dict[str, Any] = {"block": (config.block, 1, 1), "cluster": (config.cluster, 1, 1)}
    with Kernel(config.name, min_blocks=config.blocks_per_sm, **shape) as k:
        args = Arguments(k, config)
        position = Position(k, config, args)
        row_sum = RowSum(k, config, position)
        row = position.row()
        resident = Chunks(k, config, args, row, position.member, config.vectors, position.chunks)
        tail = Tail(k, config, args, position, row) if config.wide else None
        resident.load()
        first_weights = resident.load_weights(0)
        resident.add_residual()
        resident.store_sum()
        chains = [k.var("f32", 0.0) for _ in range(CHAINS)]
        resident.square_into(chains)
        if tail is not None:
            for turn in tail.turns():
                turn.square_into(chains)
        total = row_sum((chains[0] + chains[1]) + (chains[2] + chains[3]))
        rstd = ptx.rsqrt.approx(ptx.fma(total, args.inverse_hidden, args.eps, rnd="rn"))
        resident.store_normalized(rstd, first_weights)
        if tail is not None:
            for turn in tail.turns():
                turn.store_sum()
                turn.store_normalized(rstd, turn.load_weights(0))
        ptx.ret()
    return k
