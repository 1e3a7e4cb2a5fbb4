"""Tensor copies: tiles of one to five dimensions, reductions, edited maps, and what a map must keep."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch

from pyptx_ops.dsl import Kernel, TensorMapSpec, ptx
from pyptx_ops.dsl.macros import wait_parity
from pyptx_ops.dsl.sim import SimulationError
from tests.sim.tools import POLICIES, item, launch, tensor, thread_index

THREADS = 32
NUMPY = {"u8": np.uint8, "u16": np.uint16, "u32": np.uint32, "i32": np.int32, "u64": np.uint64, "i64": np.int64,
         "f16": np.float16, "f32": np.float32, "f64": np.float64, "bf16": np.uint16, "tf32": np.uint32}  # fmt: skip


def through(spec: TensorMapSpec, load_at: tuple[int, ...], store_at: tuple[int, ...], op: str | None = None) -> Kernel:
    """A tile of `source` is loaded, written out as it lies, and stored to `target`, or reduced into it."""
    nbytes = int(np.prod(spec.box)) * np.dtype(NUMPY[spec.dtype]).itemsize
    dim = f"{spec.rank}d"
    with Kernel("through", block=(THREADS, 1, 1)) as k:
        source, target = k.tensor_map("source", spec), k.tensor_map("target", spec)
        out = k.param("out", "pointer")
        smem = k.dynamic_shared(1024)
        tile, full = smem.array("tile", nbytes, 1024), smem.array("full", 8, 8)
        thread = thread_index()
        with k.if_(thread == 0):
            ptx.mbarrier.init(full, 1)
            ptx.fence.mbarrier_init()
            ptx.mbarrier.arrive.expect_tx(full.reg(), nbytes)
            ptx.cp.async_.bulk.tensor.prefetch(source, list(load_at), dim=dim)
            ptx.cp.async_.bulk.tensor.load(tile.reg(), source, list(load_at), full.reg(), dim=dim)
        ptx.bar.warp.sync(0xFFFFFFFF)
        wait_parity(full.reg(), 0)
        with k.if_(thread == 0):
            for start in range(0, nbytes, 16):
                chunk = ptx.ld(tile.at(start, 16), space="shared::cta", vec="v4", type="b32")
                ptx.st(out + start, chunk, space="global", vec="v4", type="b32")
            if op:
                ptx.cp.reduce.async_.bulk.tensor(target, list(store_at), tile.reg(), dim=dim, op=op)
            else:
                ptx.cp.async_.bulk.tensor.store(target, list(store_at), tile.reg(), dim=dim)
            ptx.cp.async_.bulk.commit_group()
            ptx.cp.async_.bulk.wait_group(0)
        ptx.ret()
    return k


def strides_of(sizes: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Bytes of the outer dimensions: each a multiple of 16, with a gap."""
    strides, total = [], sizes[0] * itemsize
    for size in sizes[1:]:
        total = -(-total // 16) * 16 + 16
        strides.append(total)
        total *= size
    return tuple(strides)


def elements(sizes, strides, itemsize, at, box):
    """(index in the tile, offset in bytes or None out of bounds) of each element, innermost first."""
    for i, place in enumerate(product(*(range(b) for b in reversed(box)))):
        where = [a + p for a, p in zip(at, reversed(place))]
        inside = all(0 <= w < size for w, size in zip(where, sizes))
        yield i, where[0] * itemsize + sum(w * s for w, s in zip(where[1:], strides)) if inside else None


CASES = [("u8", 0), ("u16", 32), ("i32", 64), ("f64", 128), ("bf16", 128), ("f32", 0), ("u64", 64), ("tf32", 32)]


@pytest.mark.parametrize("rank", range(1, 6))
@pytest.mark.parametrize("dtype, swizzle", CASES)
def test_tiles(dtype: str, swizzle: int, rank: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    kind = np.dtype(NUMPY[dtype])
    inner = (swizzle or 48) // kind.itemsize
    box = (inner, *(int(random.integers(1, 5)) for _ in range(rank - 1)))
    sizes = (inner + 16 // kind.itemsize + 3, *(int(random.integers(2, 6)) for _ in range(rank - 1)))
    step = 16 // kind.itemsize
    at, to = (
        (int(random.integers(-2, 3)) * step, *(int(random.integers(-2, size)) for size in sizes[1:])) for _ in range(2)
    )
    strides = strides_of(sizes, kind.itemsize)
    nbytes = (strides[-1] * sizes[-1] if rank > 1 else sizes[0] * kind.itemsize) + 16
    source, target = (torch.from_numpy(random.integers(0, 256, nbytes, dtype=np.uint8)) for _ in range(2))
    spec = TensorMapSpec(dtype, box, swizzle, oob_nan=dtype in ("bf16", "f32", "f64"))
    tile = np.zeros(int(np.prod(box)) * kind.itemsize, np.uint8)
    fill = np.full(kind.itemsize, 0xFF if spec.oob_nan else 0, np.uint8)
    fill[[0, -1]] = (0xFD, 0x7F) if spec.oob_nan else 0  # a NaN that is not any other
    for i, offset in elements(sizes, strides, kind.itemsize, at, box):
        part = source.numpy()[offset : offset + kind.itemsize] if offset is not None else fill
        tile[i * kind.itemsize : (i + 1) * kind.itemsize] = part
    wanted = target.numpy().copy()
    for i, offset in elements(sizes, strides, kind.itemsize, to, box):
        if offset is not None:
            wanted[offset : offset + kind.itemsize] = tile[i * kind.itemsize : (i + 1) * kind.itemsize]
    laid = np.zeros(-(-tile.size // 1024) * 1024, np.uint8).reshape(-1, 16)
    place = np.arange(tile.size // 16) * 16
    laid[(place ^ (place >> 7 & max(swizzle // 16 - 1, 0)) << 4) // 16] = tile.reshape(-1, 16)
    out = torch.zeros(tile.size, dtype=torch.uint8)
    described = (*sizes, *strides)
    launch(through(spec, at, to), source, *described, target, *described, out, policy=POLICIES[seed % 4])
    assert (target.numpy() == wanted).all()
    if swizzle == 0 or tile.size % 1024 == 0:
        assert (out.numpy() == laid.reshape(-1)[: tile.size]).all()


REDUCTIONS = {
    "add": ("u32", "i32", "u64", "f32", "f16"), "min": ("u32", "i32", "i64", "f16"), "max": ("i32", "u64", "f16"),
    "inc": ("u32",), "dec": ("u32",), "and": ("u32", "u64"), "or": ("i32",), "xor": ("u64",),
}  # fmt: skip


def combined(op: str, was: np.ndarray, x: np.ndarray) -> np.ndarray:
    one = was.dtype.type(1)
    if op == "inc":
        return np.where(was >= x, 0, was + one).astype(was.dtype)
    if op == "dec":
        return np.where((was == 0) | (was > x), x, was - one).astype(was.dtype)
    table = {"add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and, "or": np.bitwise_or}
    return table.get(op, np.bitwise_xor)(was, x)


def numbers(random: np.random.Generator, kind: np.dtype, count: int, small: bool) -> np.ndarray:
    if kind.kind == "f":
        return random.standard_normal(count).astype(kind)
    info = np.iinfo(kind)
    return random.integers(0 if small else info.min, 6 if small else info.max, count, kind)


@pytest.mark.parametrize("op, dtype", [(op, dtype) for op, kinds in REDUCTIONS.items() for dtype in kinds])
def test_tiles_are_reduced(op: str, dtype: str, seed: int) -> None:
    random = np.random.default_rng(seed)
    kind = np.dtype(NUMPY[dtype])
    columns, rows = 32 // kind.itemsize, 5
    source, target = (numbers(random, kind, rows * columns, op in ("inc", "dec")).reshape(rows, columns) for _ in "ab")
    spec = TensorMapSpec(dtype, (columns, 4))
    wanted = target.copy()
    wanted[2:] = combined(op, target[2:], source[1:4])
    result, out = tensor(target), torch.zeros(4 * 32, dtype=torch.uint8)
    described = (columns, rows, 32)
    kernel = through(spec, (0, 1), (0, 2), op)
    launch(kernel, tensor(source), *described, result, *described, out, policy=POLICIES[seed % 4])
    assert (result.numpy().view(kind).reshape(rows, columns) == wanted).all()


def test_a_reduction_that_the_elements_do_not_have() -> None:
    spec = TensorMapSpec("f32", (8, 4))
    with pytest.raises(SimulationError, match="does not take the elements"):
        memory = torch.zeros(4, 8)
        launch(through(spec, (0, 0), (0, 0), "max"), memory, 8, 4, 32, memory, 8, 4, 32, torch.zeros(32))


GOOD = {"dtype": "bf16", "box": (64, 8), "swizzle": 128}
BROKEN = {
    "a box beyond 256": ({"box": (64, 257)}, {}, "a box of 257 elements"),
    "a box wider than the swizzle": ({"swizzle": 64}, {}, "128 bytes, wider than its swizzle of 64"),
    "an inner box of 8 bytes": ({"box": (4, 8), "swizzle": 0}, {}, "8 bytes, which is no multiple of 16"),
    "an address": ({}, {"shift": 8}, "the address of a tensor map is no multiple of 16"),
    "a stride": ({}, {"stride": 136}, "a stride of 136 bytes"),
    "a long stride": ({}, {"stride": 2**40}, "less than 2\\^40"),
    "a size of zero": ({}, {"rows": 0}, "a dimension of size 0"),
    "a size beyond 32 bits": ({}, {"rows": 2**32 + 1}, "a dimension of size 4294967297"),
    "NaN in integers": ({"dtype": "u16", "oob_nan": True}, {}, "NaN fill of integers"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_a_map_must_keep(name: str) -> None:
    changes, described, message = BROKEN[name]
    memory = torch.zeros(16, 64, dtype=torch.bfloat16)
    rows, stride = described.get("rows", 16), described.get("stride", 128)
    values = (memory.data_ptr() + described.get("shift", 0), 64, rows, stride)
    with pytest.raises(SimulationError, match=message) as raised:
        spec = TensorMapSpec(**{**GOOD, **changes})
        launch(through(spec, (0, 0), (0, 0)), *values, *values, torch.zeros(4096))
    assert raised.value.report.kind == "tensor map"


def test_an_innermost_coordinate_within_16_bytes() -> None:
    memory = torch.zeros(16, 64, dtype=torch.bfloat16)
    with pytest.raises(SimulationError, match="coordinate 4 is 8 bytes, and an H200 takes multiples of 16"):
        described = (memory, 64, 16, 128)
        launch(through(TensorMapSpec(**GOOD), (4, 0), (0, 0)), *described, *described, torch.zeros(4096))


def test_the_number_of_coordinates() -> None:
    with Kernel("coordinates", block=(THREADS, 1, 1)) as k:
        source = k.tensor_map("source", TensorMapSpec(**GOOD))
        ptx.cp.async_.bulk.tensor.prefetch(source, [0, 0, 0], dim="3d")
        ptx.ret()
    with pytest.raises(SimulationError, match="3 coordinates for a map of 2 dimensions"):
        launch(k, torch.zeros(16, 64, dtype=torch.bfloat16), 64, 16, 128)


STEPS = ("release", "acquire")


def edited(in_place: bool, steps: tuple[str, ...] = STEPS) -> Kernel:
    """A map is copied out of the parameters, changed to another tensor, and used from global memory."""
    spec = TensorMapSpec("u32", (8, 2))
    with Kernel("edited", block=(THREADS, 1, 1)) as k:
        source = k.tensor_map("source", spec)
        other, place, out = (k.param(name, "pointer") for name in ("other", "place", "out"))
        smem = k.dynamic_shared(1024)
        tile, copy, full = smem.array("tile", 128, 128), smem.array("copy", 128, 128), smem.array("full", 8, 8)
        lane = thread_index()
        word = ptx.ld(source + ptx.cvt(lane * 4, type="u64", src="u32"), type="b32")
        if in_place:
            ptx.st(item(place, lane, 4), word, space="global", type="b32")
        else:
            ptx.st(copy.reg() + lane * 4, word, space="shared::cta", type="b32")
        ptx.bar.warp.sync(0xFFFFFFFF)
        with k.if_(lane == 0):
            target, space = (place, "global") if in_place else (copy.reg(), "shared::cta")
            replace = ptx.tensormap.replace
            replace(target, other, field="global_address", space=space)
            replace(target, 1, 12, field="global_dim", space=space)
            replace(target, 0, 48, field="global_stride", space=space)
            replace(target, 1, 4, field="box_dim", space=space)
            replace(target, 1, 2, field="element_stride", space=space)
            replace(target, 0, field="swizzle_mode", space=space)
            if in_place and "release" in steps:
                ptx.fence.proxy.tensormap.release(scope="gpu")
            ptx.mbarrier.init(full, 1)
            ptx.fence.mbarrier_init()
        ptx.bar.warp.sync(0xFFFFFFFF)
        if not in_place:
            ptx.tensormap.cp_fenceproxy(place, copy.reg(), 128, scope="gpu")
        with k.if_(lane == 0):
            if "acquire" in steps:
                ptx.fence.proxy.tensormap.acquire(place, 128, scope="gpu")
            ptx.mbarrier.arrive.expect_tx(full.reg(), 64)
            ptx.cp.async_.bulk.tensor.load(tile.reg(), place, [4, 3], full.reg(), dim="2d")
        ptx.bar.warp.sync(0xFFFFFFFF)
        wait_parity(full.reg(), 0)
        with k.if_(lane < 16):
            value = ptx.ld(tile.reg() + lane * 4, space="shared::cta", type="u32")
            ptx.st(item(out, lane, 4), value, space="global")
        ptx.ret()
    return k


def run_edited(kernel: Kernel, policy: str = "lazy") -> None:
    source, other = torch.zeros(4, 8, dtype=torch.int32), torch.arange(144, dtype=torch.int32).reshape(12, 12)
    room, out = torch.zeros(64, dtype=torch.int32), torch.zeros(2, 8, dtype=torch.int32)
    place = room.data_ptr() + -room.data_ptr() % 128
    launch(kernel, source, 8, 4, 32, other, place, out, policy=policy)
    wanted = torch.zeros(2, 8, dtype=torch.int32)
    wanted[:, :4] = other[3:6:2, 4:8]  # every second row; the map still says that a row has 8 elements
    assert torch.equal(out, wanted)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("in_place", [False, True])
def test_maps_that_a_kernel_edits(in_place: bool, policy: str) -> None:
    run_edited(edited(in_place), policy)


@pytest.mark.parametrize("in_place, missing", [(False, "acquire"), (True, "acquire"), (True, "release")])
def test_a_fence_that_an_edited_map_lacks(in_place: bool, missing: str) -> None:
    with pytest.raises(SimulationError, match=missing) as raised:
        run_edited(edited(in_place, tuple(step for step in STEPS if step != missing)))
    assert raised.value.report.kind == "missing fence.proxy.tensormap"
