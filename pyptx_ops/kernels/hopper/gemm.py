"""GEMM and grouped GEMM on wgmma: out[m, n] = Σ_k tokens[m, k] · weights[n, k] (+ bias[n]), fp32 accumulation.

One producer warp loads tiles of both operands by TMA into a ring of shared-memory stages; consumer warpgroups of 64
rows each multiply them; the grid is persistent, but for split K.

    warp 0 of the last warpgroup          ring of stages                 consumer warpgroup c (64 rows of X each)
    for tile, for k block:                ┌──────────────┐               for tile, for k block:
      wait empty[s] ───────────────────►  │ X: tile_m×64 │  ◄─────────────  wait full[s]
      expect_tx(full[s]); TMA X, TMA Y ►  │ Y: tile_n×64 │               4 × wgmma m64 n(tile_n) k16; commit
                                          └──────────────┘               wait for the group before; arrive empty[s − 1]
                                                                         epilogue: registers ► shared ► 16-byte stores

X feeds the rows of wgmma and Y its columns. Ordinarily X holds the tokens. With `swap` X holds the weights, so that few
tokens fill the N side, which goes in steps of 8, and the tile is written transposed. With `split_k` the CTAs of a
cluster take parts of K; their fp32 parts are added through distributed shared memory in a fixed order, so results
repeat.

With `swiglu` half of a tile's weights come from the gate's tensor map and half from up's, so that a thread holds the
gate and up of an output element (`gemm_swiglu.py`).

With `ragged_k` each group of `offs` is a product over its own part of K, whose first block may be short. Zeros ahead of
it cost nothing: a tensor map sees an operand as windows of tile_k rows of K, and window w begins with row w. A block
of d ≤ tile_k rows that starts at s is read from window s, from its row d − tile_k on, and what a box has before the
window, the copy fills with zeros. The operands are contiguous along M and N: K may start anywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from ...dsl import Kernel, Reg, RegArray, SharedPlan, SharedRef, TensorMapSpec, ptx, special
from ...dsl.desc import MatrixDescriptor, k_major_128b, mn_major_128b
from ...dsl.macros import ceil_div, elect_one, zero
from ..configs import GemmConfig
from ..ring import Barriers, Ring
from ..schedule import GroupedSchedule, RaggedKSchedule, StaticSchedule, Tile
from .gemm_epilogue import Epilogue, SplitEpilogue
from .gemm_swiglu import SplitSwigluEpilogue, SwigluEpilogue

__all__ = ["build"]

ELEMENT_BYTES = 2
BLOCK_MN = 64  # elements of a 128-byte swizzled row


@dataclass(frozen=True)
class OperandTile:
    """One operand's tile in a stage: `rows` along M or N, `depth` along K, and how it lies in shared memory.

    parts: tensors that as many rows each come from, which lie one below the other.
    """

    major: str
    rows: int
    depth: int
    parts: int = 1

    @property
    def nbytes(self) -> int:
        return self.rows * self.depth * ELEMENT_BYTES

    @property
    def box(self) -> tuple[int, int]:
        """(inner, outer) elements of one tensor copy."""
        return (self.depth, self.rows // self.parts) if self.major == "k" else (BLOCK_MN, self.depth)

    @property
    def copies(self) -> int:
        """Tensor copies per part: K-major takes one, MN-major one per block of 64 rows."""
        return 1 if self.major == "k" else self.rows // self.parts // BLOCK_MN

    @property
    def copy_bytes(self) -> int:
        return self.nbytes // (self.parts * self.copies)

    @property
    def descriptor(self) -> MatrixDescriptor:
        return k_major_128b() if self.major == "k" else mn_major_128b(self.depth)

    def load(
        self, destination: Reg, tensor_maps: Sequence[Reg], row: Reg, k: Reg, group: Reg | int | None, barrier: Reg
    ) -> None:
        """Copy the tile whose first row, of each part, is `row` and first column along K is `k`."""
        for number, (tensor_map, copy) in enumerate(product(tensor_maps, range(self.copies))):
            block = row + copy * BLOCK_MN if copy else row
            inner_outer = (k, block) if self.major == "k" else (block, k)
            coordinates = [c.as_type("s32") for c in inner_outer]
            address = destination + number * self.copy_bytes if number else destination
            if group is None:
                ptx.cp.async_.bulk.tensor.load(address, tensor_map, coordinates, barrier, dim="2d")
            else:
                third = group.as_type("s32") if isinstance(group, Reg) else group
                ptx.cp.async_.bulk.tensor.load(address, tensor_map, [*coordinates, third], barrier, dim="3d")


@dataclass(frozen=True)
class Layout:
    """What a config settles: the operand tiles, register budgets, and the plan of shared memory."""

    config: GemmConfig

    @property
    def x(self) -> OperandTile:
        return OperandTile(self.config.x_major, self.config.tile_m, self.config.tile_k, self._parts(self.config.swap))

    @property
    def y(self) -> OperandTile:
        parts = self._parts(not self.config.swap)
        return OperandTile(self.config.y_major, self.config.tile_n, self.config.tile_k, parts)

    def _parts(self, weights: bool) -> int:
        return 2 if weights and self.config.swiglu else 1

    @property
    def stage_bytes(self) -> int:
        return self.x.nbytes + self.y.nbytes

    @property
    def loads_bound(self) -> bool:
        """Few tokens: the tensor cores wait for loads, so a stage is freed at once instead of one block later."""
        return self.config.swap and self.config.tile_n <= 64

    @property
    def threads(self) -> int:
        return 128 * (self.config.consumers + 1)

    @property
    def registers(self) -> tuple[int, int]:
        """(producer, consumer) registers per thread after setmaxnreg; their sum fits what the launch reserves."""
        if self.config.consumers == 1:
            return (24, 232)
        return (24, 104) if self.config.blocks_per_sm == 2 else (40, 232)


@dataclass(frozen=True)
class Arguments:
    """The kernel's parameters, loaded.

    x_maps, y_maps: of each part of the operands.
    bias_steps: with swiglu, elements of the bias from a column's to the next one's, and from a gate's to its up's.
    """

    x_maps: tuple[Reg, ...]
    y_maps: tuple[Reg, ...]
    out: Reg
    bias: Reg
    m: Reg
    n: Reg
    k: Reg
    out_f32: Reg | None
    bias_steps: tuple[Reg, Reg] | None
    offs: Reg | None
    groups: Reg | None


def build(config: GemmConfig) -> Kernel:
    """Trace the kernel of one config."""
    layout = Layout(config)
    kernel = Kernel(
        config.name, block=(layout.threads, 1, 1), cluster=(config.split_k, 1, 1), min_blocks=config.blocks_per_sm
    )
    with kernel as k:
        args = declare_arguments(k, layout)
        smem = k.dynamic_shared()
        stages = smem.array("stages", config.stages * layout.stage_bytes, 1024)
        epilogue = epilogue_of(config, smem)
        barriers = Barriers(smem, config.stages)
        thread = ptx.mov(special("tid.x"), type="u32")
        warpgroup = thread >> 7
        with k.if_(thread == 0):
            for tensor_map in (*args.x_maps, *args.y_maps):
                ptx.prefetch.tensormap(tensor_map)
            barriers.init(consumer_warps=4 * config.consumers)
            ptx.fence.mbarrier_init()
        if config.split_k > 1:  # also so that no CTA reaches into one that does not run yet
            ptx.barrier.cluster.arrive()
            ptx.barrier.cluster.wait()
        else:
            ptx.bar.sync(0)
        producer_registers, consumer_registers = layout.registers
        with k.if_(warpgroup == config.consumers):
            ptx.setmaxnreg(producer_registers, action="dec")
            with k.if_((thread & 127) < 32):
                producer(k, layout, args, stages, barriers)
            if config.split_k > 1:  # every thread of the cluster arrives, also those that have no parts to send
                ptx.barrier.cluster.arrive()
        with k.else_():
            ptx.setmaxnreg(consumer_registers, action="inc")
            consumer(k, layout, args, stages, barriers, epilogue, thread)
        ptx.ret()
    return kernel


def epilogue_of(config: GemmConfig, smem: SharedPlan) -> Epilogue | SplitEpilogue:
    """What a config's consumers do with their sums; it takes the shared memory that this needs."""
    if config.swiglu:
        return SplitSwigluEpilogue(config, smem) if config.split_k > 1 else SwigluEpilogue(config, smem)
    return SplitEpilogue(config, smem) if config.split_k > 1 else Epilogue(config, smem)


def declare_arguments(k: Kernel, layout: Layout) -> Arguments:
    """The parameters, in the order in which the host passes them."""
    config = layout.config

    def maps(name: str, tile: OperandTile, weights: bool) -> tuple[Reg, ...]:
        box = (*tile.box, 1) if weights or config.ragged_k else tile.box
        spec = TensorMapSpec("bf16" if config.dtype == "bf16" else "f16", box, swizzle=128, l2_promotion=256)
        names = (f"{name}_gate", f"{name}_up") if tile.parts == 2 else (name,)
        return tuple(k.tensor_map(each, spec) for each in names)

    return Arguments(
        x_maps=maps("x", layout.x, weights=config.swap),
        y_maps=maps("y", layout.y, weights=not config.swap),
        out=k.param("out", "pointer"),
        bias=k.param("bias", "pointer"),
        m=k.param("m", "u32"),
        n=k.param("n", "u32"),
        k=k.param("k", "u32"),
        out_f32=None if config.swiglu else k.param("out_f32", "u32"),
        bias_steps=(k.param("bias_step", "u32"), k.param("bias_up", "u32")) if config.swiglu else None,
        offs=k.param("offs", "pointer") if config.grouped else None,
        groups=k.param("groups", "u32") if config.grouped else None,
    )


def schedule(k: Kernel, config: GemmConfig, args: Arguments) -> GroupedSchedule | RaggedKSchedule | StaticSchedule:
    """The order in which this CTA (or its cluster) takes tiles; every role walks it alike."""
    worker, workers = ptx.mov(special("ctaid.x"), type="u32"), ptx.mov(special("nctaid.x"), type="u32")
    tokens, weights = config.tokens, config.weights
    if config.ragged_k:
        assert args.offs is not None and args.groups is not None
        return RaggedKSchedule(
            k, worker=worker, workers=workers, m=args.m, n=args.n, depth=args.k, offs=args.offs, groups=args.groups,
            tokens=tokens, weights=weights, tile_k=config.tile_k,
        )  # fmt: skip
    m, n, k_blocks = args.m, args.n, ceil_div(args.k, config.tile_k)
    if args.offs is not None and args.groups is not None:
        return GroupedSchedule(
            k, worker=worker, workers=workers, m=m, n=n, k_blocks=k_blocks, offs=args.offs, groups=args.groups,
            tokens=tokens, weights=weights,
        )  # fmt: skip
    if config.split_k == 1:
        return StaticSchedule(
            k, worker=worker, workers=workers, m=m, n=n, k_blocks=k_blocks, tokens=tokens, weights=weights
        )
    cluster = worker // config.split_k
    return StaticSchedule(k, worker=cluster, workers=None, m=m, n=n, k_blocks=k_blocks, tokens=tokens, weights=weights)


def k_range(config: GemmConfig, k_blocks: Reg) -> tuple[Reg | int, Reg]:
    """(first, end) of the K blocks that this CTA takes: all, or its share of the cluster's."""
    if config.split_k == 1:
        return 0, k_blocks
    rank = ptx.mov(special("cluster_ctarank"), type="u32")
    shift = config.split_k.bit_length() - 1
    return (k_blocks * rank) >> shift, (k_blocks * (rank + 1)) >> shift


def producer(k: Kernel, layout: Layout, args: Arguments, stages: SharedRef, barriers: Barriers) -> None:
    """One warp: load every K block of every tile into the next free stage."""
    config = layout.config
    ring = Ring(k, barriers, producer=True)
    tiles = schedule(k, config, args)
    base = stages.reg()
    leader = elect_one()
    with k.loop():
        tile = tiles.next()
        x_row, y_row = (tile.weight, tile.token) if config.swap else (tile.token, tile.weight)
        for block in k.range(*k_range(config, tile.k_blocks)):
            ring.wait_empty()
            with k.if_(leader):
                full = ring.full()
                stage = base + ring.stage * layout.stage_bytes
                k_start, x_group, y_group = third_dimension(config, tile, block * config.tile_k)
                ptx.mbarrier.arrive.expect_tx(full, layout.stage_bytes)
                layout.x.load(stage, args.x_maps, x_row, k_start, x_group, full)
                layout.y.load(stage + layout.x.nbytes, args.y_maps, y_row, k_start, y_group, full)
            ring.advance()


def third_dimension(config: GemmConfig, tile: Tile, k_start: Reg) -> tuple[Reg, Reg | int | None, Reg | int | None]:
    """(along K, third of X, third of Y) of a K block's coordinates: groups of the weights, or windows of both."""
    if config.ragged_k:
        # Full blocks end where the group does, so the first one starts up to tile_k − 1 rows ahead of the group.
        start = tile.k_end - (tile.k_blocks * config.tile_k - k_start)
        ahead = ptx.max((tile.k_first - start).as_type("s32"), 0).as_type("u32")
        window = start + ahead
        return 0 - ahead, window, window
    return (k_start, tile.group, None) if config.swap else (k_start, None, tile.group)


def consumer(
    k: Kernel, layout: Layout, args: Arguments, stages: SharedRef, barriers: Barriers,
    epilogue: Epilogue | SplitEpilogue, thread: Reg,
) -> None:  # fmt: skip
    """One warpgroup: multiply its rows of every tile, and write them."""
    config = layout.config
    ring = Ring(k, barriers, producer=False)
    tiles = schedule(k, config, args)
    warpgroup = thread >> 7
    x_base = layout.x.descriptor.at(stages.reg() + warpgroup * (layout.x.nbytes // config.consumers))
    y_base = layout.y.descriptor.at(stages.reg() + layout.x.nbytes)
    accumulator = k.regs("f32", config.row_blocks * config.tile_n // 2)
    one_lane = (thread & 31) == 0
    epilogue.prepare(k, args, thread)
    with k.loop():
        tile = tiles.next()
        first, end = k_range(config, tile.k_blocks)
        released = k.var("u32", 0)
        for block in k.range(first, end):
            ring.wait_full()
            stage_offset = ptx.mul.wide(ring.stage, layout.stage_bytes >> 4)
            multiply(layout, accumulator, x_base + stage_offset, y_base + stage_offset, block != first)
            if layout.loads_bound:
                ptx.wgmma.wait_group(0)
                ring.release(ring.empty(), one_lane)
            else:
                ptx.wgmma.wait_group(1)
                ring.release(released, one_lane & (block != first))
                released.set(ring.empty())
            ring.advance()
        if not layout.loads_bound:
            ptx.wgmma.wait_group(0)
            ring.release(released, one_lane & (end != first))
        with k.if_(end == first):  # behind the wait: writes before wgmma would make ptxas serialise it
            zero(accumulator)
        epilogue.write(k, tile, accumulator)


def multiply(layout: Layout, accumulator: RegArray, x: Reg, y: Reg, accumulate: Reg) -> None:
    """accumulator (+)= X · Yᵀ over one stage, as one wgmma group. Without `accumulate` the sum starts anew."""
    config = layout.config
    ptx.wgmma.fence()
    block_bytes = layout.x.nbytes // (config.consumers * config.row_blocks)
    for step, block in product(range(config.tile_k // 16), range(config.row_blocks)):
        rows = x + (block * block_bytes >> 4) if block else x
        ptx.wgmma.mma_async(
            accumulator[block * config.tile_n // 2 : (block + 1) * config.tile_n // 2],
            layout.x.descriptor.advance(rows, step),
            layout.y.descriptor.advance(y, step),
            accumulate if step == 0 else 1,
            1,
            1,
            int(config.x_major == "mn"),
            int(config.y_major == "mn"),
            shape=f"m64n{config.tile_n}k16",
            dtype="f32",
            atype=config.dtype,
            btype=config.dtype,
        )
    ptx.wgmma.commit_group()
