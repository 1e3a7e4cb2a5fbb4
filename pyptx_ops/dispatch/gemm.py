"""gemm and grouped_gemm: operands as tensor maps can take them, a plan per kind of call, and the launch.

A tensor map takes a matrix whose one dimension is contiguous, whose pitch is a multiple of 16 bytes and whose address
is too. Any other operand (an odd pitch, a misaligned view, two strides, overlapping rows, grouped rows that are
contiguous along M) is copied first, into rows along K that are padded to 16 bytes: one more pass over it, never a wrong
answer. Where groups divide K it is the other way round: operands that are contiguous along K are copied too, into rows
along M or N.

Kernels count rows, columns, K and groups in 32 bits, with a sign where a tensor copy takes them. A larger `gemm` goes
in parts, and so do more pairs of matrices; other larger groups the op refuses.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import repeat
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import launch
from ..kernels.configs import GemmConfig, Layout
from ..kernels.hopper.tuning.gemm import GemmProblem, grid, select
from . import bound, multiprocessors, route

__all__ = ["MOST", "Plan", "batched_gemm", "gemm", "grouped_gemm", "grouped_gemm_ragged_k", "plan_of"]

ALIGNMENT = 16  # bytes, of a tensor map's address and pitches
ELEMENT_BYTES = 2
CHUNK = ALIGNMENT // ELEMENT_BYTES
WINDOW = 64  # rows of K that a tensor map shows at once where groups divide K: tile_k of those kernels
MAX_PLANS = 4096
MOST = 2**31 - 1  # of a size: the coordinates of a tensor copy are s32
PART = 2**24  # of a size that is larger

_DTYPE_NAMES = {torch.bfloat16: "bf16", torch.float16: "f16"}


class Matrix(NamedTuple):
    """A matrix of `rows` × K as a tensor map sees it, one per group: sizes and byte strides, innermost first."""

    major: Layout
    tail: tuple[int, ...]


@dataclass(frozen=True)
class Plan:
    """All of a call that does not change while shapes, strides, dtypes and the device stay the same."""

    config: GemmConfig
    kernel: launch.Kernel
    blocks: int
    token_tail: tuple[int, ...]
    weight_tail: tuple[int, ...]
    sizes: tuple[int, ...]
    copy_tokens: bool
    copy_weights: bool


_plans: dict[tuple[Any, ...], Plan] = {}


def gemm(a: Tensor, b: Tensor, bias: Tensor | None, out_dtype: torch.dtype | None) -> Tensor:
    """a (..., K) @ b (K, N) + bias (N,) on checked CUDA tensors of bf16 or fp16; contiguous (..., N)."""
    out = a.new_empty((*a.shape[:-1], b.shape[1]), dtype=out_dtype)
    if out.numel() == 0:
        return out
    if b.shape[0] == 0:
        return out.zero_() if bias is None else out.copy_(bias.expand_as(out))
    if max(a.numel() // b.shape[0], *b.shape) > MOST:
        _gemm_in_parts(_rows(a), b, bias, out.view(-1, b.shape[1]))
    else:
        _run("gemm", (a, b, bias, out_dtype), out, a, b, bias, None)
    return out


def _gemm_in_parts(a: Tensor, b: Tensor, bias: Tensor | None, out: Tensor) -> None:
    """For sizes that no kernel takes: sums of fp32 products over parts of K, for parts of the rows and columns."""
    for rows in _parts(a.shape[0]):
        for columns in _parts(b.shape[1]):
            total = torch.zeros((), dtype=torch.float32, device=a.device)
            for depth in _parts(b.shape[0]):
                total = total + gemm(a[rows, depth], b[depth, columns], None, torch.float32)
            out[rows, columns] = total if bias is None else total + bias[columns]


def _parts(size: int) -> Iterator[slice]:
    return (slice(start, start + PART) for start in range(0, size, PART))


def grouped_gemm(a: Tensor, b: Tensor, offs: Tensor, bias: Tensor | None, out_dtype: torch.dtype | None) -> Tensor:
    """Row groups of a (M, K) times b (G, K, N), + bias (G, N), on checked CUDA tensors; contiguous (M, N)."""
    args = (a, b, offs, bias, out_dtype)
    out = a.new_empty((a.shape[0], b.shape[2]), dtype=out_dtype)
    if out.numel() == 0:
        return out
    if b.shape[0] == 0:
        return out.zero_()
    if a.shape[1] == 0:  # only the bias is left: a product over zeros, for the rows that belong to groups
        a, b = a.new_zeros((a.shape[0], CHUNK)), b.new_zeros((b.shape[0], CHUNK, b.shape[2]))
    _run("grouped_gemm", args, out, a, b, bias, offs)
    return out


def batched_gemm(a: Tensor, b: Tensor, bias: Tensor | None, out_dtype: torch.dtype | None) -> Tensor:
    """a (G, M, K) times b (G, K, N), + bias (G, N): groups of M rows; contiguous (G, M, N)."""
    (groups, m, k), n = a.shape, b.shape[2]
    if groups * m > MOST:  # more rows than `offs` counts
        per_launch = MOST // m
        biases = repeat(None) if bias is None else bias.split(per_launch)
        parts = zip(a.split(per_launch), b.split(per_launch), biases)
        return torch.cat([batched_gemm(*part, out_dtype) for part in parts])
    out = a.new_empty((groups, m, n), dtype=out_dtype)
    if out.numel() == 0:
        return out
    if k == 0:
        return out.zero_() if bias is None else out.copy_(bias.unsqueeze(1))
    offs = torch.arange(m, groups * m + 1, m, dtype=torch.int32, device=a.device)
    _run("grouped_gemm", (a, b, None, bias, out_dtype), out, a, b, bias, offs)
    return out


def grouped_gemm_ragged_k(
    a: Tensor, b: Tensor, offs: Tensor, bias: Tensor | None, out_dtype: torch.dtype | None
) -> Tensor:
    """Column groups of a (M, K) times row groups of b (K, N), + bias (G, N); contiguous (G, M, N)."""
    args = (a, b, offs, bias, out_dtype)
    out = a.new_empty((offs.shape[0], a.shape[0], b.shape[1]), dtype=out_dtype)
    if out.numel() == 0:
        return out
    if a.shape[1] == 0:
        return out.zero_() if bias is None else out.copy_(bias.unsqueeze(1))
    plan = plan_of(a, b, offs.shape[0])
    tokens = _padded_copy(a.t()) if plan.copy_tokens else a
    weights = _padded_copy(b) if plan.copy_weights else b
    operands = (tokens, *plan.token_tail, weights, *plan.weight_tail)
    addend = 0 if bias is None else bias.contiguous()
    values = (
        *operands, out, addend, *plan.sizes, out.dtype is torch.float32, offs.contiguous(), offs.shape[0],
    )  # fmt: skip
    bound.launch("grouped_gemm", args, plan.kernel, out.get_device(), (plan.blocks, 1, 1), values, (out,))
    return out


def plan_of(a: Tensor, b: Tensor, groups: int) -> Plan:
    """The plan for a (..., K) times b (K, N), or by groups; made once per kind of call."""
    device, launcher = a.get_device(), launch.current_launcher()
    aligned = a.data_ptr() % ALIGNMENT == 0, b.data_ptr() % ALIGNMENT == 0
    key = (a.shape, a.stride(), b.shape, b.stride(), a.dtype, aligned, groups, device, launcher)
    plan = _plans.get(key)
    if plan is None:
        if len(_plans) >= MAX_PLANS:
            _plans.clear()
        make = _make_ragged_k_plan if groups and b.dim() == 2 else _make_plan
        plan = _plans[key] = make(a, b, groups, device, launcher)
    return plan


def _run(
    op: str, args: tuple[object, ...], out: Tensor, a: Tensor, b: Tensor, bias: Tensor | None, offs: Tensor | None
) -> None:
    """Fill `out`: copy what no tensor map takes, launch, and bind calls of this kind if nothing was copied."""
    groups = 0 if offs is None else b.shape[0]
    plan = plan_of(a, b, groups)
    tokens = _padded_copy(_rows(a)) if plan.copy_tokens else a
    weights = _padded_copy(b.transpose(-1, -2)) if plan.copy_weights else b
    if plan.config.swap:
        operands = (weights, *plan.weight_tail, tokens, *plan.token_tail)
    else:
        operands = (tokens, *plan.token_tail, weights, *plan.weight_tail)
    addend = 0 if bias is None else bias.contiguous()
    extra = () if offs is None else (offs.contiguous(), groups)
    values = (*operands, out, addend, *plan.sizes, out.dtype is torch.float32, *extra)
    bound.launch(op, args, plan.kernel, out.get_device(), (plan.blocks, 1, 1), values, (out,))


def _make_plan(a: Tensor, b: Tensor, groups: int, device: int, launcher: launch.Launcher) -> Plan:
    tokens, weights = _rows(a), b.transpose(-1, -2)
    (m, k), n = tokens.shape, weights.shape[-2]
    token_matrix, copy_tokens = _matrix(tokens, k_major_only=groups > 0)
    weight_matrix, copy_weights = _matrix(weights)
    problem = GemmProblem(m, n, k, _DTYPE_NAMES[a.dtype], token_matrix.major, weight_matrix.major, groups)
    arch = route(device).arch
    assert arch is not None  # checked tensors on a device that runs kernels
    sms = multiprocessors(device)
    config = select(problem, sms)
    kernel = launcher.kernel(arch, config.name)
    if weights.dim() == 2:  # the kernel sees one group
        inner, outer, pitch = weight_matrix.tail
        weight_matrix = Matrix(weight_matrix.major, (inner, outer, 1, pitch, pitch))
    return Plan(
        config, kernel, grid(problem, config, sms), token_matrix.tail, weight_matrix.tail, (m, n, k),
        copy_tokens or tokens.data_ptr() != a.data_ptr(), copy_weights,
    )  # fmt: skip


def _make_ragged_k_plan(a: Tensor, b: Tensor, groups: int, device: int, launcher: launch.Launcher) -> Plan:
    """Both operands are seen as windows of rows of K (`kernels/hopper/gemm.py`)."""
    (token_tail, copy_tokens), (weight_tail, copy_weights) = _windows(a.t()), _windows(b)
    (m, k), n = a.shape, b.shape[1]
    problem = GemmProblem(m, n, k, _DTYPE_NAMES[a.dtype], "mn", "mn", groups, ragged_k=True)
    arch = route(device).arch
    assert arch is not None  # checked tensors on a device that runs kernels
    sms = multiprocessors(device)
    config = select(problem, sms)
    blocks = grid(problem, config, sms)
    kernel = launcher.kernel(arch, config.name)
    return Plan(config, kernel, blocks, token_tail, weight_tail, (m, n, k), copy_tokens, copy_weights)


def _windows(tensor: Tensor) -> tuple[tuple[int, ...], bool]:
    """Rows of K as windows of WINDOW rows, one beginning with each row; and whether the rows are copied first."""
    matrix, copy = _matrix(tensor, k_major_only=True)
    inner, rows, pitch = matrix.tail
    return (inner, WINDOW, rows, pitch, pitch), copy


def _rows(a: Tensor) -> Tensor:
    """(..., K) as (rows, K): a view where the strides allow one."""
    return a if a.dim() == 2 else a.reshape(-1, a.shape[-1])


def _matrix(tensor: Tensor, *, k_major_only: bool = False) -> tuple[Matrix, bool]:
    """How a tensor map describes a (rows, K) or (groups, rows, K) tensor, or its padded copy; and whether to copy."""
    rows, k = tensor.shape[-2:]
    row_stride, k_stride = tensor.stride()[-2:]
    batch = _batch(tensor)
    if batch is not None and tensor.data_ptr() % ALIGNMENT == 0:
        if (k_stride == 1 or k == 1) and _is_pitch(row_stride, rows, k):
            return Matrix("k", _tail(k, rows, row_stride, batch)), False
        if not k_major_only and (row_stride == 1 or rows == 1) and _is_pitch(k_stride, k, rows):
            return Matrix("mn", _tail(rows, k, k_stride, batch)), False
    pitch = _round_up(k)
    copied = tuple((size, rows * pitch) for size in tensor.shape[:-2])
    return Matrix("k", _tail(k, rows, pitch, copied)), True


def _batch(tensor: Tensor) -> tuple[tuple[int, int], ...] | None:
    """(size, stride) of the group dimension, if there is one; None if no tensor map can take its stride."""
    if tensor.dim() == 2:
        return ()
    size, stride = tensor.shape[0], tensor.stride(0)
    if size == 1:
        return ((1, CHUNK),)
    return ((size, stride),) if stride > 0 and stride % CHUNK == 0 else None


def _is_pitch(stride: int, outer: int, inner: int) -> bool:
    """Whether a tensor map can take this stride of the outer dimension; with one row its stride does not matter."""
    return outer == 1 or (stride >= inner and stride % CHUNK == 0)


def _tail(inner: int, outer: int, pitch: int, batch: tuple[tuple[int, int], ...]) -> tuple[int, ...]:
    """Sizes, then byte strides of all but the innermost dimension."""
    pitch = pitch if outer > 1 else _round_up(inner)
    sizes = (inner, outer, *(size for size, _ in batch))
    return (*sizes, *(stride * ELEMENT_BYTES for stride in (pitch, *(stride for _, stride in batch))))


def _padded_copy(tensor: Tensor) -> Tensor:
    """A copy whose rows along K start at multiples of 16 bytes."""
    k = tensor.shape[-1]
    padded = torch.empty((*tensor.shape[:-1], _round_up(k)), dtype=tensor.dtype, device=tensor.device)
    rows = padded[..., :k]
    rows.copy_(tensor)
    return rows


def _round_up(elements: int) -> int:
    return -(-elements // CHUNK) * CHUNK
