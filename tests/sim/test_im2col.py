"""Tensor copies in im2col mode, against a walk through the window one place after the other."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from pyptx_ops.dsl import Im2col, Kernel, TensorMapSpec, ptx
from pyptx_ops.dsl.macros import wait_parity
from pyptx_ops.dsl.sim import SimulationError
from tests.sim.tools import POLICIES, launch, thread_index

NUMPY = {"u8": np.uint8, "bf16": np.uint16, "i32": np.int32, "f32": np.float32, "u64": np.uint64}
SIZES = (40, 5, 4, 3, 3)  # channels, then the dimensions outwards
Place = tuple[int, ...]


def walked(window: Im2col, sizes: Place, start: Place, offsets: Place, pixels: int) -> Iterator[Place | None]:
    """Coordinates of the outer dimensions of one pixel after the other, or None outside of the tensor."""
    place = list(start)
    first = window.lower
    last = [size - 1 + up for size, up in zip(sizes, window.upper)]
    for _ in range(pixels):
        read = [p + o for p, o in zip(place, (*offsets, 0))]
        yield tuple(read) if all(0 <= r < size for r, size in zip(read, sizes)) else None
        for d in range(len(place)):
            place[d] += window.steps[d] if d < len(first) else 1
            if d == len(first) or place[d] <= last[d]:
                break
            place[d] = first[d]


def through(
    spec: TensorMapSpec, channel: int, load_at: Place, offsets: Place, store_at: Place, op: str | None = None
) -> Kernel:
    """A tile of `source` is loaded, written out as it lies, and stored to `target`, or reduced into it."""
    nbytes = int(np.prod(spec.box)) * np.dtype(NUMPY[spec.dtype]).itemsize
    load, store = ({"dim": f"{spec.rank}d", "mode": mode} for mode in ("im2col", "im2col_no_offs"))
    with Kernel("im2col", block=(32, 1, 1)) as k:
        source, target = k.tensor_map("source", spec), k.tensor_map("target", spec)
        out = k.param("out", "pointer")
        smem = k.dynamic_shared(1024)
        tile, full = smem.array("tile", nbytes, 1024), smem.array("full", 8, 8)
        thread = thread_index()
        shifts = [ptx.mov(offset, type="u16") for offset in offsets]
        with k.if_(thread == 0):
            ptx.mbarrier.init(full, 1)
            ptx.fence.mbarrier_init()
            ptx.mbarrier.arrive.expect_tx(full.reg(), nbytes)
            tensor = ptx.cp.async_.bulk.tensor
            tensor.prefetch_im2col(source, [channel, *load_at], shifts, **load)
            tensor.load_im2col(tile.reg(), source, [channel, *load_at], full.reg(), shifts, **load)
        ptx.bar.warp.sync(0xFFFFFFFF)
        wait_parity(full.reg(), 0)
        with k.if_(thread == 0):
            for start in range(0, nbytes, 16):
                chunk = ptx.ld(tile.at(start, 16), space="shared::cta", vec="v4", type="b32")
                ptx.st(out + start, chunk, space="global", vec="v4", type="b32")
            if op:
                ptx.cp.reduce.async_.bulk.tensor(target, [channel, *store_at], tile.reg(), op=op, **store)
            else:
                ptx.cp.async_.bulk.tensor.store(target, [channel, *store_at], tile.reg(), **store)
            ptx.cp.async_.bulk.commit_group()
            ptx.cp.async_.bulk.wait_group(0)
        ptx.ret()
    return k


def window_of(random: np.random.Generator, spatial: int) -> Im2col:
    lower = tuple(int(random.integers(-3, 1)) for _ in range(spatial))
    upper = tuple(int(random.integers(-2, 3)) for _ in range(spatial))
    return Im2col(lower, upper, tuple(int(random.integers(1, 4)) for _ in range(spatial)))


def start_in(random: np.random.Generator, window: Im2col, sizes: Place) -> Place:
    """A place of the window, in one of the images or before them."""
    return (
        *(
            int(random.choice(range(low, size + up, step)))
            for low, up, step, size in zip(window.lower, window.upper, window.steps, sizes)
        ),
        int(random.integers(-1, sizes[-1])),
    )  # fmt: skip


@pytest.mark.parametrize("rank", [3, 4, 5])
@pytest.mark.parametrize(
    ("dtype", "swizzle", "op"),
    [
        ("u8", 0, None),
        ("bf16", 128, None),
        ("i32", 64, None),
        ("f32", 32, None),
        ("i32", 128, "add"),
        ("u64", 0, "add"),
    ],
)
def test_tiles(dtype: str, swizzle: int, op: str | None, rank: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    kind = np.dtype(NUMPY[dtype])
    wide, step = (swizzle or 48) // kind.itemsize, 16 // kind.itemsize
    window = window_of(random, rank - 2)
    pixels = int(random.integers(1, 60))
    channels = SIZES[0] if kind.itemsize < 8 else 34
    sizes = SIZES[1:rank]
    strides: list[int] = []
    for size in (channels * kind.itemsize, *sizes[:-1]):
        strides.append(-(-size // 16) * 16 if not strides else strides[-1] * size)
    load_at, store_at = (start_in(random, window, sizes) for _ in "ab")
    offsets = tuple(int(random.integers(0, 3)) for _ in range(rank - 2))
    channel = int(random.integers(-1, channels // step)) * step
    nbytes = strides[-1] * sizes[-1]
    source, target = (torch.from_numpy(random.integers(0, 256, nbytes, dtype=np.uint8)) for _ in "ab")
    images = {"source": source.numpy(), "target": target.numpy().copy()}

    def element(image: np.ndarray, place: Place, c: int) -> np.ndarray:
        at = sum(p * s for p, s in zip(place, strides)) + c * kind.itemsize
        return image[at : at + kind.itemsize]

    nan = dtype in ("bf16", "f32")
    fill = np.full(kind.itemsize, 0xFF if nan else 0, np.uint8)
    fill[[0, -1]] = (0xFD, 0x7F) if nan else (0, 0)
    tile = np.empty((pixels, wide, kind.itemsize), np.uint8)
    for i, place in enumerate(walked(window, sizes, load_at, offsets, pixels)):
        for j in range(wide):
            inside = place is not None and 0 <= channel + j < channels
            tile[i, j] = element(images["source"], place, channel + j) if inside else fill
    for i, place in enumerate(walked(window, sizes, store_at, (0,) * (rank - 2), pixels)):
        for j in range(wide):
            if place is None or not 0 <= channel + j < channels:
                continue
            into = element(images["target"], place, channel + j)
            with np.errstate(over="ignore"):
                total = into.view(kind) + tile[i, j].view(kind) if op else tile[i, j].view(kind)
            into[:] = total.view(np.uint8)
    spec = TensorMapSpec(dtype, (wide, pixels), swizzle, oob_nan=nan, im2col=window)
    out = torch.zeros(tile.size, dtype=torch.uint8)
    described = (channels, *sizes, *strides)
    kernel = through(spec, channel, load_at, offsets, store_at, op)
    launch(kernel, source, *described, target, *described, out, policy=POLICIES[seed % 4])
    assert (target.numpy() == images["target"]).all()
    if not swizzle:
        assert (out.numpy() == tile.reshape(-1)).all()


def test_a_convolution_reads_what_torch_unfolds(seed: int) -> None:
    """A filter of 3 x 3 with padding 1 and step 2: the tile at each offset is a slice of the unfolded image."""
    random = np.random.default_rng(seed)
    image = torch.from_numpy(random.integers(-99, 99, (2, 5, 7, 8)).astype(np.int32))  # n, h, w, c
    padded = torch.nn.functional.pad(image.permute(0, 3, 1, 2).double(), (1, 1, 1, 1))
    unfolded = torch.nn.functional.unfold(padded, 3, stride=2).reshape(2, 8, 9, 3 * 4)
    wanted = unfolded.permute(2, 0, 3, 1).reshape(9, 24, 8).int()  # of the filter's places, 2 images of 3 x 4, channels
    spec = TensorMapSpec("i32", (8, 24), im2col=Im2col((-1, -1), (1 - 2, 1 - 2), (2, 2)))
    described = (8, 7, 5, 2, 32, 7 * 32, 35 * 32)
    for place in (0, 4, int(random.integers(9))):
        kernel = through(spec, 0, (-1, -1, 0), (place % 3, place // 3), (-1, -1, 0))
        out = torch.zeros(24 * 8, dtype=torch.int32)
        launch(kernel, image, *described, torch.zeros_like(image), *described, out)
        assert torch.equal(out.reshape(24, 8), wanted[place])


DESCRIBED = (32, 5, 4, 2, 64, 320, 1280)
WINDOW = Im2col((-1, -1), (0, 0), (2, 1))


@pytest.mark.parametrize(
    ("change", "at", "offsets", "message"),
    [
        ({"im2col": None, "box": (16, 4, 1, 1)}, (-1, 0, 0), (0, 0), "with a map that was made for tiles"),
        ({}, (-2, 0, 0), (0, 0), "coordinate -2 of dimension 1 is no start .*: 3 from -1, 2 apart"),
        ({}, (0, 0, 0), (0, 0), "coordinate 0 of dimension 1 is no start"),
        ({}, (5, 0, 0), (0, 0), "coordinate 5 of dimension 1 is no start"),
        ({}, (-1, 0, 0), (256, 0), "an offset of im2col of 256; less than 256"),
        ({"im2col": Im2col((-129, 0), (0, 0))}, (0, 0, 0), (0, 0), "a corner of im2col at -129; -128 to 127"),
        ({"im2col": Im2col((0, 0), (0, -4))}, (0, 0, 0), (0, 0), "window of im2col is empty in dimension 2"),
        ({"box": (16, 1025)}, (-1, 0, 0), (0, 0), "1025 pixels of im2col"),
        ({"box": (4, 8)}, (-1, 0, 0), (0, 0), "inner box .* is 8 bytes"),
    ],
)
def test_what_no_map_or_copy_takes(change: dict, at: Place, offsets: Place, message: str) -> None:
    spec = TensorMapSpec(**{"dtype": "bf16", "box": (16, 8), "im2col": WINDOW, **change})
    image = torch.zeros(4096, dtype=torch.uint8)
    with pytest.raises(SimulationError, match=message):
        launch(through(spec, 0, at, offsets, at), image, *DESCRIBED, image, *DESCRIBED, torch.zeros(65536))


def test_corners_and_boxes_fit_together() -> None:
    with pytest.raises(ValueError, match="corners and steps"):
        Im2col((0, 0), (0,))
    with pytest.raises(ValueError, match="channels and pixels"):
        TensorMapSpec("bf16", (16, 4, 1), im2col=WINDOW)
    assert TensorMapSpec("bf16", (16, 4), im2col=WINDOW).rank == 4
