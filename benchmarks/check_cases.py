"""What `check_ops` tries: every op over sizes around tile edges, layouts, groups, options and LLM shapes."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

import pyptx_ops
from benchmarks import products
from benchmarks.products import offs_of, operand
from pyptx_ops.ops._ragged import row_groups
from pyptx_ops.ops._swiglu import split
from pyptx_ops.trials.bounds import (
    excess,
    fused_excess,
    grouped_excess,
    norm_excess,
    product_bound,
    product_excess,
    ragged_k_excess,
    silu_excess,
    silu_gradients_excess,
)
from tests.ops.inputs import LAYOUTS, relaid

__all__ = ["Check", "checks"]

DTYPES = (torch.bfloat16, torch.float16)
PRODUCT_LAYOUTS = ("NN", "NT", "TN", "TT")
VIEWS = (*LAYOUTS, "odd pitch", "shifted")
GATHERED = 1 << 27  # elements of weights that may be gathered row by row


@dataclass(frozen=True)
class Check:
    """One call of an op. run: makes the operands, calls the op and gives its error over its bound. elements: about."""

    op: str
    dtype: torch.dtype
    name: str
    elements: int
    run: Callable[[], float]


def poisoned(elements: int, dtype: torch.dtype = torch.float32) -> None:
    """Fills the blocks that the next outputs of this size come from with NaN (all bits set, in every dtype)."""
    count = max(1, elements * dtype.itemsize)
    for block in [torch.empty(count, dtype=torch.uint8, device=products.DEVICE) for _ in range(3)]:
        block.fill_(255)


def laid(tensor: Tensor, layout: str) -> Tensor:
    """The same values in another layout: those of the tests, an odd pitch, or an address that is off by one element."""
    if layout == "odd pitch":
        columns = tensor.shape[-1]
        return F.pad(tensor, (0, 1 + columns % 2), value=math.nan)[..., :columns]
    if layout == "shifted":
        return tensor.new_empty(tensor.numel() + 1)[1:].view(tensor.shape).copy_(tensor)
    return relaid(tensor, layout)


def checks() -> Iterator[Check]:
    yield from gemm_checks()
    yield from grouped_checks()
    yield from ragged_k_checks()
    yield from norm_checks()
    yield from swiglu_checks()
    yield from huge_checks()


# gemm

ROWS = (0, 1, 2, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 127, 128, 129, 257)
COLUMNS = (0, 1, 7, 8, 9, 63, 65, 127, 128, 129, 191, 193, 255, 256, 257)
DEPTHS = (0, 1, 7, 8, 63, 64, 65, 129, 520)
LLM = (
    (1, 6144, 4096), (16, 28672, 4096), (128, 4096, 14336), (257, 6144, 4096), (4096, 4096, 4096), (4095, 2112, 7168),
    (1021, 7168, 2053),
)  # fmt: skip
SAMPLED = 300


def gemm_checks() -> Iterator[Check]:
    every = list(itertools.product(ROWS, COLUMNS, DEPTHS))
    chance = random.Random(0)
    for dtype, layout in itertools.product(DTYPES, PRODUCT_LAYOUTS):
        main = dtype is torch.bfloat16 and layout == "NT"
        for number, size in enumerate(every if main else chance.sample(every, SAMPLED)):
            yield gemm_check(size, layout, dtype, bias=number % 2 == 1, wide=number % 3 == 2)
        for number, size in enumerate(LLM):
            yield gemm_check(size, layout, dtype, bias=number % 2 == 1, wide=number % 3 == 2)
        for size in ((64, 128, 72), (33, 35, 37), (300, 264, 200)):
            for one, other in itertools.product(VIEWS, VIEWS):
                yield gemm_check(size, layout, dtype, bias=True, wide=False, relay=(one, other))


def gemm_check(
    size: tuple[int, int, int],
    layout: str,
    dtype: torch.dtype,
    bias: bool,
    wide: bool,
    relay: tuple[str, str] | None = None,
) -> Check:
    m, n, k = size
    out_dtype = torch.float32 if wide else None

    def run() -> float:
        a, b = operand(m, k, layout[0], dtype), operand(k, n, layout[1], dtype)
        if relay:
            a, b = laid(a, relay[0]), laid(b, relay[1])
        added = operand(1, n, "N", dtype)[0] if bias else None
        poisoned(m * n, out_dtype or dtype)
        out = pyptx_ops.gemm(a, b, added, out_dtype=out_dtype)
        return product_excess(out, a, b, added) if out.dtype is (out_dtype or dtype) else math.inf

    parts = (f"{m}x{n}x{k} {layout}", "bias" if bias else "", "fp32 out" if wide else "", ", ".join(relay or ()))
    return Check("gemm", dtype, " ".join(filter(None, parts)), m * n + k * (m + n), run)


# grouped_gemm

COUNTS: tuple[tuple[int, ...], ...] = (
    (5,), (0,), (3, 0, 4), (0, 0, 0), (0, 0, 9), (9, 0, 0), (1, 1, 1, 1), (64, 0, 127, 1), (127, 129), (128, 256, 128),
    (1, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 65, 255, 257), (700, 1, 0, 3),
)  # fmt: skip
WIDTHS = ((24, 40), (1, 1), (3, 5), (129, 65), (256, 64), (264, 200), (64, 0), (0, 64), (193, 520))
MANY = (1023, 1024, 1025, 4096)
TAILS = (0, 3, 200)
LLM_GROUPS = ((8, 64, 28672, 4096), (128, 1024, 1536, 2048), (128, 4096, 2048, 768), (32, 4096, 4096, 7168))


def grouped_checks() -> Iterator[Check]:
    for dtype in DTYPES:
        every = itertools.product(COUNTS, WIDTHS, TAILS, (True, False))
        for number, (counts, (n, k), tail, nt) in enumerate(every):
            if dtype is torch.bfloat16 or number % 4 == 0:
                yield grouped_check(counts, n, k, tail, nt, dtype, bias=number % 2 == 1, wide=number % 3 == 2)
        for one, other in itertools.product(VIEWS, VIEWS):
            yield grouped_check((4, 0, 130, 7), 48, 72, 5, False, dtype, bias=True, wide=False, relay=(one, other))
        for groups, (n, k) in itertools.product(MANY, ((16, 8), (72, 136), (5, 3))):
            counts = tuple(random.Random(groups).choices((0, 1, 2, 9), k=groups))
            yield grouped_check(counts, n, k, 7, True, dtype, bias=True, wide=False)
        for groups, rows, n, k in LLM_GROUPS:
            drawn = random.Random(groups).choices(range(groups), [1 / (g + 1) for g in range(groups)], k=rows)
            counts = tuple(drawn.count(g) for g in range(groups))
            for nt in (True, False):
                yield grouped_check(counts, n, k, 13, nt, dtype, bias=not nt, wide=False)


def grouped_check(
    counts: Sequence[int],
    n: int,
    k: int,
    tail: int,
    nt: bool,
    dtype: torch.dtype,
    bias: bool,
    wide: bool,
    relay: tuple[str, str] | None = None,
) -> Check:
    groups, used = len(counts), sum(counts)
    rows, out_dtype = used + tail, torch.float32 if wide else None

    def run() -> float:
        a = operand(rows, k, "N", dtype)
        a[used:] = math.nan
        stored = operand(groups * (n if nt else k), k if nt else n, "N", dtype)
        b = stored.view(groups, n, k).transpose(1, 2) if nt else stored.view(groups, k, n)
        if relay:
            a, b = laid(a, relay[0]), laid(b, relay[1])
        added = operand(groups, n, "N", dtype) if bias else None
        offs = offs_of(torch.tensor(counts))
        poisoned(rows * n, out_dtype or dtype)
        out = pyptx_ops.grouped_gemm(a, b, offs, added, out_dtype=out_dtype)
        if out.dtype is not (out_dtype or dtype):
            return math.inf
        truth = gathered_excess if rows * n * k <= GATHERED else grouped_excess
        return truth(out, a, b, offs, added)

    shown = str(tuple(counts)) if groups <= 4 else f"{groups} groups, {used} rows"
    parts = (
        f"{shown} +{tail} N{n} K{k} {'NT' if nt else 'NN'}", "bias" if bias else "", "fp32 out" if wide else "",
        ", ".join(relay or ()),
    )  # fmt: skip
    elements = groups * n * k + rows * (n + k)
    return Check("grouped_gemm", dtype, " ".join(filter(None, parts)), elements, run)


RAGGED_WIDTHS = ((24, 40), (1, 1), (3, 5), (129, 65), (256, 128), (264, 200), (64, 0), (127, 257), (1, 193))
RAGGED_MANY = (1023, 1024, 1025)


def ragged_k_checks() -> Iterator[Check]:
    """Groups along K: the weight gradient."""
    for dtype in DTYPES:
        every = itertools.product(COUNTS, RAGGED_WIDTHS, TAILS)
        for number, (counts, (m, n), tail) in enumerate(every):
            yield ragged_k_check(counts, m, n, tail, dtype, bias=number % 2 == 1, wide=number % 3 == 2)
        for one, other in itertools.product(VIEWS, VIEWS):
            yield ragged_k_check((4, 0, 130, 7), 48, 72, 5, dtype, bias=True, wide=False, relay=(one, other))
        for groups in RAGGED_MANY:
            counts = tuple(random.Random(groups).choices((0, 1, 2, 9), k=groups))
            yield ragged_k_check(counts, 16, 40, 7, dtype, bias=False, wide=False)
        for groups, rows, n, k in LLM_GROUPS:
            drawn = random.Random(groups).choices(range(groups), [1 / (g + 1) for g in range(groups)], k=rows)
            counts = tuple(drawn.count(g) for g in range(groups))
            yield ragged_k_check(counts, k, n, 13, dtype, bias=False, wide=False)


def ragged_k_check(
    counts: Sequence[int],
    m: int,
    n: int,
    tail: int,
    dtype: torch.dtype,
    bias: bool,
    wide: bool,
    relay: tuple[str, str] | None = None,
) -> Check:
    groups, used = len(counts), sum(counts)
    depth, out_dtype = used + tail, torch.float32 if wide else None

    def run() -> float:
        rows, b = operand(depth, m, "N", dtype), operand(depth, n, "N", dtype)
        rows[used:] = b[used:] = math.nan
        if relay:
            rows, b = laid(rows, relay[0]), laid(b, relay[1])
        added = operand(groups, n, "N", dtype) if bias else None
        offs = offs_of(torch.tensor(counts))
        poisoned(groups * m * n, out_dtype or dtype)
        out = pyptx_ops.grouped_gemm(rows.t(), b, offs, added, out_dtype=out_dtype)
        return ragged_k_excess(out, rows.t(), b, offs, added) if out.dtype is (out_dtype or dtype) else math.inf

    shown = str(tuple(counts)) if groups <= 4 else f"{groups} groups, {used} rows"
    parts = (f"along K {shown} +{tail} M{m} N{n}", "bias" if bias else "", "fp32 out" if wide else "")
    name = " ".join(filter(None, (*parts, ", ".join(relay or ()))))
    return Check("grouped_gemm", dtype, name, groups * m * n + depth * (m + n), run)


def gathered_excess(out: Tensor, a: Tensor, b: Tensor, offs: Tensor, bias: Tensor | None = None) -> float:
    """As `grouped_excess`, with each row's weights gathered: few launches for many small groups."""
    if out.shape != (a.shape[0], b.shape[2]):
        return math.inf
    used = int(offs[-1])
    if used == 0 or out.numel() == 0:
        return math.inf if bool((out != 0).any()) else 0.0
    group = row_groups(offs, used)
    left, right = a[:used].double().unsqueeze(1), b.double()[group]
    truth, magnitude = torch.bmm(left, right).squeeze(1), torch.bmm(left.abs(), right.abs()).squeeze(1)
    if bias is not None:
        truth, magnitude = truth + bias.double()[group], magnitude + bias.double().abs()[group]
    worst = excess(out[:used], truth, product_bound(truth, magnitude, a.shape[1], out.dtype)).max()
    return float(worst) if bool((out[used:] == 0).all()) else math.inf


# rms_norm, fused_add_rms_norm

HIDDEN = (
    1, 2, 3, 7, 8, 9, 63, 64, 65, 127, 129, 255, 256, 257, 511, 1000, 1024, 1025, 2048, 2880, 4096, 5120, 7168, 8191,
    8192, 8193, 16384, 16385, 24576, 32768, 65536, 131072,
)  # fmt: skip
NORM_ROWS = (0, 1, 2, 5, 131, 1024)
MAX_NORM = 1 << 24
# (dtype of the weight: None for no weight, "x" for that of x; weight_offset; cast_before_weight)
WEIGHTS = (("x", 0.0, True), (None, 0.0, True), ("fp32", 0.0, False), ("x", 1.0, False), ("fp32", 1.0, True))


def norm_checks() -> Iterator[Check]:
    for dtype, hidden, rows in itertools.product(DTYPES, HIDDEN, NORM_ROWS):
        if rows * hidden > MAX_NORM:
            continue
        for op, (weight, offset, cast) in itertools.product(NORM_OPS, WEIGHTS):
            yield norm_check(op, rows, hidden, dtype, weight, offset, cast)
    for dtype, layout, hidden, op in itertools.product(DTYPES, VIEWS, (1, 72, 1023, 4096, 16386), NORM_OPS):
        yield norm_check(op, 33, hidden, dtype, "x", 0.0, True, layout)


def norm_check(
    op: str,
    rows: int,
    hidden: int,
    dtype: torch.dtype,
    weighted: str | None,
    offset: float,
    cast: bool,
    layout: str = "contiguous",
) -> Check:
    options = (1e-5, offset, cast)

    def run() -> float:
        x, residual = (laid(operand(rows, hidden, "N", dtype), layout) for _ in range(2))
        wanted = torch.float32 if weighted == "fp32" else dtype
        weight = operand(1, hidden, "N", wanted)[0] if weighted else None
        poisoned(rows * hidden, dtype)
        return NORM_OPS[op](x, residual, weight, options)

    name = f"{rows}x{hidden} weight {weighted or 'none'} +{offset:g} {'cast first' if cast else 'cast last'} {layout}"
    return Check(op, dtype, name, rows * hidden, run)


Options = tuple[float, float, bool]


def _norm(x: Tensor, residual: Tensor, weight: Tensor | None, options: Options) -> float:
    return norm_excess(pyptx_ops.rms_norm(x, weight, *options), x, weight, *options)


def _fused(x: Tensor, residual: Tensor, weight: Tensor | None, options: Options) -> float:
    return fused_excess(pyptx_ops.fused_add_rms_norm(x, residual, weight, *options), x, residual, weight, *options)


def _fused_in_place(x: Tensor, residual: Tensor, weight: Tensor | None, options: Options) -> float:
    kept_x, kept_residual = x.clone(), residual.clone()
    pyptx_ops.fused_add_rms_norm_(x, residual, weight, *options)
    return fused_excess((x, residual), kept_x, kept_residual, weight, *options)


NORM_OPS = {"rms_norm": _norm, "fused_add_rms_norm": _fused, "fused_add_rms_norm_": _fused_in_place}


# silu_and_mul, swiglu, and their gradients

SILU_WIDTHS = (0, 1, 2, 7, 8, 9, 63, 65, 127, 128, 129, 255, 257, 768, 1000, 2048, 8191, 8192, 14336, 28672)
SILU_ROWS = (0, 1, 3, 129, 1024)
SCALE = 4.0  # so that the gate reaches where silu bends


def swiglu_checks() -> Iterator[Check]:
    for dtype, width, rows in itertools.product(DTYPES, SILU_WIDTHS, SILU_ROWS):
        yield packed_check(rows, width, dtype, interleaved=False)
        yield packed_check(rows, width, dtype, interleaved=True)
        yield swiglu_check(rows, width, dtype)
        yield swiglu_check(rows, width, dtype, used=rows // 2)
    for dtype, width, one, other in itertools.product(DTYPES, (40, 1001, 2048), VIEWS, VIEWS):
        yield swiglu_check(33, width, dtype, layouts=(one, other))
        yield swiglu_check(33, width, dtype, used=32, layouts=(one, other))
    for dtype, layout, width, interleaved in itertools.product(DTYPES, VIEWS, (40, 1001, 2048), (False, True)):
        yield packed_check(33, width, dtype, interleaved, layout)


def packed_check(rows: int, width: int, dtype: torch.dtype, interleaved: bool, layout: str = "contiguous") -> Check:
    def run() -> float:
        x = laid(operand(rows, 2 * width, "N", dtype) * SCALE, layout)
        poisoned(rows * width, dtype)
        out = pyptx_ops.silu_and_mul(x, interleaved)
        gate, up = split(x, interleaved)
        dy = operand(rows, width, "N", dtype)
        poisoned(2 * rows * width, dtype)
        dx = torch.ops.pyptx.silu_and_mul_bwd(dy, x, interleaved)
        return max(silu_excess(out, gate, up), silu_gradients_excess(*split(dx, interleaved), dy, gate, up))

    name = f"{rows}x{width} {'interleaved' if interleaved else 'halves'} {layout}"
    return Check("silu_and_mul", dtype, name, 2 * rows * width, run)


def swiglu_check(
    rows: int,
    width: int,
    dtype: torch.dtype,
    used: int | None = None,
    layouts: tuple[str, str] = ("contiguous", "contiguous"),
) -> Check:
    """used: rows that belong to groups; the others hold NaN and must come out zero."""

    def run() -> float:
        gate, up = (laid(operand(rows, width, "N", dtype) * SCALE, layout) for layout in layouts)
        end = rows if used is None else used
        dy = laid(operand(rows, width, "N", dtype), layouts[0])
        gate[end:] = up[end:] = dy[end:] = math.nan
        offs = None if used is None else offs_of(torch.tensor([used // 2, 0, used - used // 2]))
        poisoned(rows * width, dtype)
        out = pyptx_ops.swiglu(gate, up, offs)
        gradients = torch.ops.pyptx.swiglu_bwd(dy, gate, up, offs)
        if any(bool((result[end:] != 0).any()) for result in (out, *gradients)):
            return math.inf
        used_rows = [tensor[:end] for tensor in (*gradients, dy, gate, up)]
        return max(silu_excess(out[:end], gate[:end], up[:end]), silu_gradients_excess(*used_rows))

    name = f"{rows}x{width} {'' if used is None else f'offs to {used} '}{', '.join(layouts)}"
    return Check("swiglu", dtype, name, 2 * rows * width, run)


# more than 2**31 elements

HUGE_ROWS, HUGE_COLUMNS = 70_001, 32_768
HUGE_BLOCK = 4096


def huge_checks() -> Iterator[Check]:
    elements, dtype = HUGE_ROWS * HUGE_COLUMNS, torch.bfloat16
    yield gemm_check((HUGE_ROWS, HUGE_COLUMNS, 40), "NT", dtype, bias=True, wide=False)
    yield grouped_check((1, 30_000, 0, 39_990), HUGE_COLUMNS, 40, 10, True, dtype, bias=False, wide=False)

    def norm() -> float:
        x, weight = operand(HUGE_ROWS, HUGE_COLUMNS), operand(1, HUGE_COLUMNS)[0]
        out = pyptx_ops.rms_norm(x, weight)
        return max(norm_excess(out[rows], x[rows], weight) for rows in _edges())

    def silu() -> float:
        gate, up = operand(HUGE_ROWS, HUGE_COLUMNS), operand(HUGE_ROWS, HUGE_COLUMNS)
        out = pyptx_ops.swiglu(gate, up)
        return max(silu_excess(out[rows], gate[rows], up[rows]) for rows in _edges())

    yield Check("rms_norm", dtype, "more than 2**31 elements", elements, norm)
    yield Check("swiglu", dtype, "more than 2**31 elements", elements, silu)


def _edges() -> list[slice]:
    """The first rows, those around element 2**31, and the last."""
    around = 2**31 // HUGE_COLUMNS
    return [slice(HUGE_BLOCK), slice(around - HUGE_BLOCK, around + HUGE_BLOCK), slice(-HUGE_BLOCK, None)]
