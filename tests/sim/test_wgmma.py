"""wgmma of every type: against an H200, against integers, and against exact sums that are cut off as hardware does."""

from __future__ import annotations

import lzma
from pathlib import Path

import numpy as np
import pytest
import torch

from pyptx_ops import _sim
from pyptx_ops.dsl import Kernel, Reg, ptx
from pyptx_ops.dsl.desc import MatrixDescriptor
from pyptx_ops.dsl.sim import SimulationError
from pyptx_ops.dsl.sim.ptx import PtxError
from tests.sim.tools import copy_in, item, launch, tensor, thread_index

THREADS, ROWS, WIDTH = 128, 64, 32  # bytes of K in one wgmma
VECTORS = Path(__file__).parent / "golden" / "wgmma_h200.bin.xz"
"""Read off an H200: per type a random case of each of four ranges of magnitude: A (64 x 32 bytes), B (8), C, D."""
SIZES = (2048, 256, 2048, 2048)
CASES = 4
BITS = {"bf16": 16, "f16": 16, "tf32": 32, "e4m3": 8, "e5m2": 8, "s8": 8, "u8": 8, "b1": 1}
MEASURED = ("bf16", "f16", "tf32", "e4m3", "e5m2")
FLOATS = {"bf16": (8, 7), "f16": (5, 10), "tf32": (8, 10), "e4m3": (4, 3), "e5m2": (5, 2), "f32": (8, 23)}


def product(
    n: int, types: tuple[str, str, str], *, registers: bool = False, majors: tuple[int, int] = (0, 0),
    spans: tuple[int, int] = (32, 32), scales: tuple[int, int] = (1, 1), accumulate: bool = True, **more: bool,
) -> Kernel:  # fmt: skip
    """D = A · B + C of one wgmma. A and B come as they lie in shared memory (A as fragments), C and D as fragments."""
    d_type, a_type, b_type = types
    words = n // 4 if d_type == "f16" else n // 2
    with Kernel(f"wgmma_{a_type}_{n}", block=(THREADS, 1, 1)) as k:
        a, b, c, d = (k.param(name, "pointer") for name in "abcd")
        smem = k.dynamic_shared(1024)
        rows, columns = smem.array("rows", 8192, 1024).reg(), smem.array("columns", 32768, 1024).reg()
        thread = thread_index()
        if not registers:
            copy_in(k, a, rows, extent(ROWS, majors[0], spans[0]), thread)
        copy_in(k, b, columns, extent(n, majors[1], spans[1]), thread)
        ptx.fence.proxy.async_(space="shared::cta")
        ptx.bar.sync(0)
        sums = k.regs("b32", words)
        for i, total in enumerate(sums):
            ptx.ld(item(c, thread, 4 * words) + 4 * i, space="global", type="b32", out=total)
        first: Reg | list[Reg] = describe(majors[0], spans[0], ROWS).at(rows)
        if registers:
            first = [ptx.ld(item(a, thread, 16) + 4 * g, space="global", type="b32") for g in range(4)]
        operands = [sums, first, describe(majors[1], spans[1], n).at(columns), int(accumulate)]
        if d_type != "s32":
            operands += scales
        if BITS[a_type] == 16:
            operands += majors[1:] if registers else majors
        depth = WIDTH * 8 // BITS[a_type]
        ptx.wgmma.fence()
        call = ptx.wgmma.mma_async.rs if registers else ptx.wgmma.mma_async
        call(*operands, shape=f"m64n{n}k{depth}", dtype=d_type, atype=a_type, btype=b_type, **more)
        ptx.wgmma.commit_group()
        ptx.wgmma.wait_group(0)
        for i, total in enumerate(sums):
            ptx.st(item(d, thread, 4 * words) + 4 * i, total, space="global", type="b32")
        ptx.ret()
    return k


def describe(mn_major: int, span: int, rows: int) -> MatrixDescriptor:
    """Dense tiles: without swizzle neighbouring units of K (or of M and N) lie in columns of 16 bytes."""
    if mn_major:
        leading, stride = (128, 256) if span == 16 else (16 * span, 8 * span)
    else:
        leading, stride = (16 * rows, 128) if span == 16 else (16, 8 * span)
    return MatrixDescriptor(leading=leading, stride=stride, swizzle=0 if span == 16 else span, k_step=0)


def extent(rows: int, mn_major: int, span: int) -> int:
    """Bytes of a tile in shared memory."""
    if span == 16:
        return rows * WIDTH
    return -(-rows * 2 // span) * 16 * span if mn_major else rows * span


def image(matrix: np.ndarray, mn_major: int, span: int) -> np.ndarray:
    """A matrix (rows, 32 bytes) as it lies in shared memory for `describe`: unit by unit, then the swizzle."""
    rows = len(matrix)
    if mn_major:  # 16-bit elements: units of 8 rows at one k
        units = matrix.view(np.uint16).reshape(rows // 8, 8, 16).transpose(0, 2, 1).copy().view(np.uint8)  # [u][k][16]
        if span == 16:
            return units.reshape(-1)
        wide = span // 16
        blocks = -(-rows // 8 // wide)
        padded = np.zeros((blocks * wide, 16, 16), np.uint8)
        padded[: rows // 8] = units.reshape(rows // 8, 16, 16)
        lines = padded.reshape(blocks, wide, 16, 16).transpose(0, 2, 1, 3).reshape(-1, 16)
    elif span == 16:
        return matrix.reshape(rows, 2, 16).transpose(1, 0, 2).reshape(-1)
    else:
        lines = np.zeros((rows, span // 16, 16), np.uint8)
        lines[:, :2] = matrix.reshape(rows, 2, 16)
        lines = lines.reshape(-1, 16)
    out = np.zeros_like(lines)
    at = np.arange(len(lines)) * 16
    out[(at ^ (at >> 7 & span // 16 - 1) << 4) // 16] = lines
    return out.reshape(-1)


def fragment_places(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Row and column of each element of the accumulators: (threads, n / 2)."""
    thread, i = np.arange(THREADS)[:, None], np.arange(n // 2)[None, :]
    lane = thread % 32
    return thread // 32 * 16 + lane // 4 + 8 * (i >> 1 & 1), 8 * (i >> 2) + 2 * (lane % 4) + (i & 1)


def a_fragment(matrix: np.ndarray) -> np.ndarray:
    """(64, 32 bytes) as four words of each of 128 threads."""
    thread, g = np.arange(THREADS)[:, None], np.arange(4)[None, :]
    lane = thread % 32
    words = matrix.view(np.uint32).reshape(ROWS, 8)
    return words[thread // 32 * 16 + lane // 4 + 8 * (g & 1), lane % 4 + 4 * (g >> 1)]


def run(kernel: Kernel, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """a, b: as the kernel takes them.  c: (64, n) of u32, or u16 for f16 sums. Returns D like c."""
    n = c.shape[1]
    rows, columns = fragment_places(n)
    start = tensor(c[rows, columns])
    out = torch.zeros_like(start)
    launch(kernel, tensor(a), tensor(b), start, out)
    result = np.zeros_like(c)
    result[rows, columns] = out.numpy().view(c.dtype).reshape(rows.shape)
    return result


def test_the_golden_cases_are_those_of_five_types() -> None:
    assert len(lzma.decompress(VECTORS.read_bytes())) == len(MEASURED) * CASES * sum(SIZES)


@pytest.mark.parametrize("case", range(CASES))
@pytest.mark.parametrize("dtype", MEASURED)
def test_the_bits_of_an_h200(dtype: str, case: int) -> None:
    data = np.frombuffer(lzma.decompress(VECTORS.read_bytes()), np.uint8)
    offset = (MEASURED.index(dtype) * CASES + case) * sum(SIZES)
    a, b, c, d = np.split(data[offset : offset + sum(SIZES)], np.cumsum(SIZES)[:-1])
    kernel = product(8, ("f32", dtype, dtype))
    start, wanted = c.view(np.uint32).reshape(ROWS, 8), d.view(np.uint32).reshape(ROWS, 8)
    got = run(kernel, image(a.reshape(ROWS, WIDTH), 0, 32), image(b.reshape(8, WIDTH), 0, 32), start)
    zeros = ((got | wanted) & 0x7FFFFFFF) == 0  # the sign of a zero is not settled
    assert (zeros | (got == wanted)).all()
    assert len(np.unique(wanted)) > 100


def encode(values: np.ndarray, dtype: str) -> np.ndarray:
    """Small integers in a type's own bits, as rows of bytes."""
    if dtype in ("s8", "u8"):
        return values.astype(np.int8).view(np.uint8)
    if dtype == "b1":
        return np.packbits(values.astype(np.uint8), axis=1, bitorder="little")
    if dtype == "tf32":
        return values.astype(np.float32).view(np.uint8)
    kinds = {"bf16": torch.bfloat16, "f16": torch.float16, "e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
    return torch.from_numpy(values.astype(np.float32)).to(kinds[dtype]).contiguous().view(torch.uint8).numpy()


LAYOUTS = [
    ("f32", "bf16", "bf16"), ("f32", "f16", "f16"), ("f16", "f16", "f16"), ("f32", "tf32", "tf32"),
    ("f32", "e4m3", "e5m2"), ("f32", "e5m2", "e5m2"), ("f16", "e5m2", "e4m3"), ("s32", "s8", "s8"), ("s32", "u8", "s8"),
    ("s32", "u8", "u8"), ("s32", "b1", "b1"),
]  # fmt: skip


@pytest.mark.parametrize("turn", range(4))
@pytest.mark.parametrize("types", LAYOUTS, ids="_".join)
def test_shapes_and_layouts(types: tuple[str, str, str], turn: int, seed: int) -> None:
    """Sums of small integers, which every type holds exactly, in a shape and layout that the seed draws."""
    random = np.random.default_rng(seed)
    d_type, a_type, b_type = types
    depth, floating = WIDTH * 8 // BITS[a_type], d_type != "s32"
    n = int(random.choice([8, 24, 40, 104, 256] if floating else [8, 24, 48, 208, 256]))
    registers = turn % 2 == 1
    majors = tuple(random.integers(0, 2, 2)) if BITS[a_type] == 16 else (0, 0)
    majors = (0 if registers else int(majors[0]), int(majors[1]))
    spans = tuple(int(s) for s in random.choice([16, 32, 64, 128], 2))
    scales = tuple(int(s) for s in random.choice([-1, 1], 2)) if floating else (1, 1)
    accumulate = turn != 2
    low, high = (0, 2) if a_type == "b1" else (0, 4) if "u8" in types else (-2, 3)
    a, b = random.integers(low, high, (ROWS, depth)), random.integers(low, high, (n, depth))
    c = random.integers(-9, 10, (ROWS, n))
    wanted = scales[0] * scales[1] * (a @ b.T) + accumulate * c
    kinds = {"f32": (np.float32, np.uint32), "f16": (np.float16, np.uint16), "s32": (np.int32, np.uint32)}
    value, bits = kinds[d_type]
    kernel = product(n, types, registers=registers, majors=majors, spans=spans, scales=scales, accumulate=accumulate)
    left, right = encode(a, a_type), encode(b, b_type)
    left = a_fragment(left) if registers else image(left, majors[0], spans[0])
    got = run(kernel, left, image(right, majors[1], spans[1]), c.astype(value).view(bits))
    assert (got.view(value) == wanted).all()


def exact(bits: int, dtype: str) -> tuple[int, int]:
    """A finite number as significand, exponent of its last place."""
    exponent_bits, mantissa_bits = FLOATS[dtype]
    bits = bits >> 13 if dtype == "tf32" else bits
    e, m = bits >> mantissa_bits & (1 << exponent_bits) - 1, bits & (1 << mantissa_bits) - 1
    significand = m | 1 << mantissa_bits if e else m
    sign = -1 if bits >> exponent_bits + mantissa_bits else 1
    return sign * significand, max(e, 1) - (1 << exponent_bits - 1) + 1 - mantissa_bits


def cut_off(products: list[tuple[int, int, int]], fraction: int) -> float:
    """Terms (significand, place, exponent) aligned to the largest exponent, truncated, added."""
    largest = max(exponent for significand, _, exponent in products if significand)
    total = 0
    for significand, place, _ in products:
        shift = place - (largest - fraction)
        aligned = abs(significand) << shift if shift >= 0 else abs(significand) >> -shift
        total += aligned if significand > 0 else -aligned
    return float(np.ldexp(float(total), largest - fraction))


@pytest.mark.parametrize("dtype", ["f16", "e4m3", "e5m2"])
def test_f16_sums_round_to_nearest(dtype: str, seed: int) -> None:
    random = np.random.default_rng(seed)
    nbytes, n = BITS[dtype] // 8, 8
    a, b = (random.integers(0, 256, (rows, WIDTH), dtype=np.uint8) for rows in (ROWS, n))
    word = {1: np.uint8, 2: np.uint16}[nbytes]
    if dtype == "f16":
        for x in (a, b):
            x.view(np.uint16)[:] &= 0xBFFF  # below 2
    else:
        for x in (a, b):
            x &= 0xBF
    c = (random.standard_normal((ROWS, n)) * 4).astype(np.float16).view(np.uint16)
    got = run(product(n, ("f16", dtype, dtype)), image(a, 0, 32), image(b, 0, 32), c)
    fraction, mantissa = (13 if nbytes == 1 else 25), FLOATS[dtype][1]
    for row in range(0, ROWS, 7):
        for column in range(n):
            terms = []
            for x, y in zip(a.view(word)[row], b.view(word)[column]):
                (sx, px), (sy, py) = exact(int(x), dtype), exact(int(y), dtype)
                terms.append((sx * sy, px + py, px + py + 2 * mantissa))
            significand, place = exact(int(c[row, column]), "f16")
            terms.append((significand, place, place + 10))
            assert got.view(np.float16)[row, column] == np.float16(cut_off(terms, fraction))


def truncated(total: int, place: int, mantissa: int) -> int:
    """total * 2^place as the bits of f32 with so many bits after the leading one, rounded toward zero."""
    if not total:
        return 0
    sign, magnitude = int(total < 0) << 31, abs(total)
    exponent = magnitude.bit_length() - 1 + place
    if exponent > 127:
        return sign | 0x7F800000
    last = max(exponent, -126) - 23
    kept = magnitude >> last - place if last >= place else magnitude << place - last
    bits = kept if exponent < -126 else (exponent + 127 << 23) + kept - (1 << 23)
    return sign | bits & -1 << 23 - mantissa


def numbers_between(random: np.random.Generator, dtype: str, low: int, high: int, shape: tuple[int, int]) -> np.ndarray:
    """Bits of finite numbers with exponent fields in a range; some are zero."""
    exponent_bits, mantissa_bits = FLOATS[dtype]
    fields = random.integers(low, high + 1, shape)
    bits = random.integers(0, 2, shape) << exponent_bits + mantissa_bits | fields << mantissa_bits
    bits |= random.integers(0, 1 << mantissa_bits, shape)
    return np.where(random.random(shape) < 0.1, 0, bits << (13 if dtype == "tf32" else 0))


@pytest.mark.parametrize("vectors", [True, False])
@pytest.mark.parametrize(
    ("dtype", "low", "high", "c_low", "c_high"),
    [
        ("bf16", 118, 130, 118, 135), ("bf16", 127, 127, 127, 129), ("bf16", 60, 80, 0, 30), ("bf16", 0, 2, 0, 2),
        ("bf16", 185, 200, 230, 254), ("bf16", 0, 254, 0, 254), ("bf16", 70, 78, 20, 28), ("f16", 0, 30, 90, 160),
        ("f16", 0, 1, 80, 105), ("tf32", 120, 133, 110, 140), ("tf32", 0, 254, 0, 254), ("e4m3", 0, 14, 110, 140),
        ("e5m2", 0, 30, 90, 165),
    ],
)  # fmt: skip
def test_f32_sums_of_any_magnitude(
    dtype: str, low: int, high: int, c_low: int, c_high: int, vectors: bool, seed: int
) -> None:
    """Also where products leave the range of f32, sums are subnormal or overflow, and C is larger or smaller by far."""
    random = np.random.default_rng(seed)
    n, word = 24, {8: np.uint8, 16: np.uint16, 32: np.uint32}[BITS[dtype]]
    depth = WIDTH * 8 // BITS[dtype]
    a, b = (numbers_between(random, dtype, low, high, (rows, depth)).astype(word) for rows in (ROWS, n))
    a[5] = b[3] = np.abs(a[5].astype(np.int64)) & (1 << BITS[dtype] - 1) - 1  # one sign: a large sum
    c = numbers_between(random, "f32", c_low, c_high, (ROWS, n)).astype(np.uint32)
    try:
        if _sim.use_vectors(vectors) != vectors:
            pytest.skip("this processor has no AVX2 and FMA")
        got = run(product(n, ("f32", dtype, dtype)), *(image(x.view(np.uint8), 0, 32) for x in (a, b)), c)
    finally:
        _sim.use_vectors(True)
    fraction, keep, mantissa = (13, 13, FLOATS[dtype][1]) if BITS[dtype] == 8 else (25, 23, FLOATS[dtype][1])
    for row in range(0, ROWS, 5):
        for column in range(n):
            terms = [(*exact(int(c[row, column]), "f32"), 23)]
            for x, y in zip(a[row], b[column]):
                (sx, px), (sy, py) = exact(int(x), dtype), exact(int(y), dtype)
                terms.append((sx * sy, px + py, 2 * mantissa))
            largest = max((place + bits for significand, place, bits in terms if significand), default=0)
            total = 0
            for significand, place, _ in terms:
                shift = place - largest + fraction
                aligned = abs(significand) << shift if shift >= 0 else abs(significand) >> -shift
                total += aligned if significand > 0 else -aligned
            assert got[row, column] == truncated(total, largest - fraction, keep), (row, column)


def test_integers_wrap_or_saturate(seed: int) -> None:
    a = np.full((ROWS, WIDTH), 127, np.uint8)
    c = np.full((ROWS, 8), 2**31 - 1000, np.int32)
    c[1] = -5
    wrapped, clamped = (
        run(product(8, ("s32", "s8", "s8"), satfinite=flag), image(a, 0, 32), image(a[:8], 0, 32), c.view(np.uint32))
        for flag in (False, True)
    )
    sums = c.astype(np.int64) + WIDTH * 127 * 127
    assert (wrapped.view(np.int32) == sums.astype(np.int32)).all()
    assert (clamped.view(np.int32) == np.minimum(sums, 2**31 - 1)).all()


@pytest.mark.parametrize("dtype, one, infinity, nan", [
    ("bf16", 0x3F80, 0x7F80, 0x7FC0), ("f16", 0x3C00, 0x7C00, 0x7E00), ("e4m3", 0x38, None, 0x7F),
    ("e5m2", 0x3C, 0x7C, 0x7E),
])  # fmt: skip
def test_infinities_and_nans(dtype: str, one: int, infinity: int | None, nan: int) -> None:
    word = {8: np.uint8, 16: np.uint16}[BITS[dtype]]
    depth, sign = WIDTH * 8 // BITS[dtype], 1 << BITS[dtype] - 1
    a, b = np.full((ROWS, depth), one, word), np.full((8, depth), one, word)
    wanted = np.full((ROWS, 8), float(depth), np.float32)
    a[1, 3], wanted[1] = nan, np.nan
    if infinity is not None:
        a[2, 5], wanted[2] = infinity, np.inf
        a[3, 5], wanted[3] = infinity | sign, -np.inf
        a[4, 1], a[4, 2], wanted[4] = infinity, infinity | sign, np.nan
        b[7, 0] = 0
        a[5, 0], wanted[5], wanted[5, 7] = infinity, np.inf, np.nan  # times zero
    wanted[[0, 6], 7] -= infinity is not None
    wanted[7:, 7] -= infinity is not None
    rows = (image(m.view(np.uint8), 0, 32) for m in (a, b))
    got = run(product(8, ("f32", dtype, dtype)), *rows, np.zeros((ROWS, 8), np.uint32))
    assert np.array_equal(got.view(np.float32), wanted, equal_nan=True)
    assert (got[np.isnan(wanted)] == 0x7FFFFFFF).all()


def test_sparse_and_base_offset_are_refused() -> None:
    with Kernel("sparse", block=(THREADS, 1, 1)) as k:
        sums, zero = k.regs("f32", 4), ptx.mov(0, type="u64")
        ptx.wgmma.mma_async.sp(
            sums, zero, zero, ptx.mov(0, type="b32"), 0, 1, 1, 1, 0, 0, shape="m64n8k32", dtype="f32", atype="bf16",
            btype="bf16",
        )  # fmt: skip
        ptx.ret()
    with pytest.raises(PtxError, match=r"PTX line \d+: wgmma.mma_async.sp.*no meaning"):
        launch(k)
    with pytest.raises(SimulationError, match="base offset"):
        with Kernel("offset", block=(THREADS, 1, 1)) as k:
            sums, zero = k.regs("f32", 4), ptx.mov(1 << 49, type="u64")
            ptx.wgmma.fence()
            ptx.wgmma.mma_async(
                sums, zero, zero, 0, 1, 1, 0, 0, shape="m64n8k16", dtype="f32", atype="f16", btype="f16"
            )
            ptx.wgmma.commit_group()
            ptx.wgmma.wait_group(0)
            ptx.ret()
        launch(k)
