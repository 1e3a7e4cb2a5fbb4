"""What `check_ops` tries of products with SwiGLU: as of those without, with gate and up as halves and alternating."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Sequence

import torch

import pyptx_ops
from benchmarks.check_cases import (
    COLUMNS,
    COUNTS,
    DEPTHS,
    DTYPES,
    LLM_GROUPS,
    MANY,
    ROWS,
    SAMPLED,
    TAILS,
    VIEWS,
    WIDTHS,
    Check,
    laid,
    poisoned,
)
from benchmarks.products import offs_of, operand
from pyptx_ops.trials.bounds import gemm_swiglu_excess, grouped_gemm_swiglu_excess

__all__ = ["gated_checks", "gemm_swiglu_check", "grouped_gemm_swiglu_check"]

GATED_LLM = ((1, 14336, 4096), (16, 14336, 4096), (64, 768, 2048), (129, 14336, 4096), (1021, 1536, 2053))


def gated_checks() -> Iterator[Check]:
    yield from gemm_swiglu_checks()
    yield from grouped_gemm_swiglu_checks()


def gemm_swiglu_checks() -> Iterator[Check]:
    every = list(itertools.product(ROWS, COLUMNS, DEPTHS))
    chance = random.Random(1)
    for dtype, layout, interleaved in itertools.product(DTYPES, ("NN", "NT"), (False, True)):
        for number, size in enumerate((*chance.sample(every, SAMPLED), *GATED_LLM)):
            yield gemm_swiglu_check(size, layout, dtype, number % 2 == 1, interleaved)
        for one, other in itertools.product(VIEWS, VIEWS):
            yield gemm_swiglu_check((33, 72, 136), layout, dtype, True, interleaved, (one, other))


def gemm_swiglu_check(
    size: tuple[int, int, int],
    layout: str,
    dtype: torch.dtype,
    bias: bool,
    interleaved: bool,
    relay: tuple[str, str] | None = None,
) -> Check:
    """size: rows, columns of the result, K."""
    m, d, k = size

    def run() -> float:
        a, w13 = operand(m, k, layout[0], dtype), operand(k, 2 * d, layout[1], dtype)
        if relay:
            a, w13 = laid(a, relay[0]), laid(w13, relay[1])
        added = operand(1, 2 * d, "N", dtype)[0] if bias else None
        poisoned(m * d, dtype)
        return gemm_swiglu_excess(pyptx_ops.gemm_swiglu(a, w13, added, interleaved), a, w13, added, interleaved)

    parts = (f"{m}x{d}x{k} {layout}", "bias" if bias else "", "interleaved" if interleaved else "")
    name = " ".join(filter(None, (*parts, ", ".join(relay or ()))))
    return Check("gemm_swiglu", dtype, name, m * d + k * (m + 2 * d), run)


def grouped_gemm_swiglu_checks() -> Iterator[Check]:
    for dtype in DTYPES:
        every = itertools.product(COUNTS, WIDTHS, TAILS, (True, False))
        for number, (counts, (d, k), tail, nt) in enumerate(every):
            if number % 2 == (dtype is torch.float16):
                options = number // 2 % 2 == 1, number // 4 % 2 == 1
                yield grouped_gemm_swiglu_check(counts, d, k, tail, nt, dtype, *options)
        for groups, (d, k) in itertools.product(MANY, ((16, 8), (5, 3))):
            counts = tuple(random.Random(groups).choices((0, 1, 2, 9), k=groups))
            yield grouped_gemm_swiglu_check(counts, d, k, 7, True, dtype, True, False)
        for groups, rows, n, k in LLM_GROUPS:
            drawn = random.Random(groups).choices(range(groups), [1 / (g + 1) for g in range(groups)], k=rows)
            counts = tuple(drawn.count(g) for g in range(groups))
            for nt in (True, False):
                yield grouped_gemm_swiglu_check(counts, n // 2, k, 13, nt, dtype, not nt, nt)


def grouped_gemm_swiglu_check(
    counts: Sequence[int], d: int, k: int, tail: int, nt: bool, dtype: torch.dtype, bias: bool, interleaved: bool
) -> Check:
    groups, used = len(counts), sum(counts)
    rows = used + tail

    def run() -> float:
        a = operand(rows, k, "N", dtype)
        a[used:] = math.nan
        stored = operand(groups * (2 * d if nt else k), k if nt else 2 * d, "N", dtype)
        w13 = stored.view(groups, 2 * d, k).transpose(1, 2) if nt else stored.view(groups, k, 2 * d)
        added = operand(groups, 2 * d, "N", dtype) if bias else None
        offs = offs_of(torch.tensor(counts))
        poisoned(rows * d, dtype)
        out = pyptx_ops.grouped_gemm_swiglu(a, w13, offs, added, interleaved)
        return grouped_gemm_swiglu_excess(out, a, w13, offs, added, interleaved)

    shown = str(tuple(counts)) if groups <= 4 else f"{groups} groups, {used} rows"
    parts = (f"{shown} +{tail} d{d} K{k} {'NT' if nt else 'NN'}", "bias" if bias else "")
    name = " ".join(filter(None, (*parts, "interleaved" if interleaved else "")))
    return Check("grouped_gemm_swiglu", dtype, name, groups * 2 * d * k + rows * (d + k), run)
