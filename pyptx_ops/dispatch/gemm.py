"""gemm and grouped_gemm: operands as tensor maps can take them, a plan per kind of call, and the launch.

Operands that no tensor map takes are copied first (`operands.py`), and so are grouped rows that are contiguous along M.
Where groups divide K it is the other way round: operands that are contiguous along K are copied too, into rows along M
or N.

Kernels count rows, columns, K and groups in 32 bits, with a sign where a tensor copy takes them. A larger `gemm` goes
in parts, and so do more pairs of matrices; other larger groups the op refuses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import repeat
from typing import Any

import torch
from torch import Tensor

from .. import launch
from ..kernels.configs import GemmConfig
from ..kernels.hopper.tuning.gemm import GemmProblem, grid, select
from . import bound, multiprocessors, route
from .operands import ALIGNMENT, CHUNK, DTYPE_NAMES, matrix_of, padded_copy, rows_of, tail_of_groups

__all__ = ["MOST", "Plan", "batched_gemm", "gemm", "grouped_gemm", "grouped_gemm_ragged_k", "kept_plan", "plan_of"]

WINDOW = 64  # rows of K that a tensor map shows at once where groups divide K: tile_k of those kernels
MAX_PLANS = 4096
MOST = 2**31 - 1  # of a size: the coordinates of a tensor copy are s32
PART = 2**24  # of a size that is larger


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
        _gemm_in_parts(rows_of(a), b, bias, out.view(-1, b.shape[1]))
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
    tokens = padded_copy(a.t()) if plan.copy_tokens else a
    weights = padded_copy(b) if plan.copy_weights else b
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
    make = _make_ragged_k_plan if groups and b.dim() == 2 else _make_plan
    return kept_plan(key, lambda: make(a, b, groups, device, launcher))


def kept_plan(key: tuple[Any, ...], make: Callable[[], Plan]) -> Plan:
    """The plan of a kind of call, made the first time."""
    plan = _plans.get(key)
    if plan is None:
        if len(_plans) >= MAX_PLANS:
            _plans.clear()
        plan = _plans[key] = make()
    return plan


def _run(
    op: str, args: tuple[object, ...], out: Tensor, a: Tensor, b: Tensor, bias: Tensor | None, offs: Tensor | None
) -> None:
    """Fill `out`: copy what no tensor map takes, launch, and bind calls of this kind if nothing was copied."""
    groups = 0 if offs is None else b.shape[0]
    plan = plan_of(a, b, groups)
    tokens = padded_copy(rows_of(a)) if plan.copy_tokens else a
    weights = padded_copy(b.transpose(-1, -2)) if plan.copy_weights else b
    if plan.config.swap:
        operands = (weights, *plan.weight_tail, tokens, *plan.token_tail)
    else:
        operands = (tokens, *plan.token_tail, weights, *plan.weight_tail)
    addend = 0 if bias is None else bias.contiguous()
    extra = () if offs is None else (offs.contiguous(), groups)
    values = (*operands, out, addend, *plan.sizes, out.dtype is torch.float32, *extra)
    bound.launch(op, args, plan.kernel, out.get_device(), (plan.blocks, 1, 1), values, (out,))


def _make_plan(a: Tensor, b: Tensor, groups: int, device: int, launcher: launch.Launcher) -> Plan:
    tokens, weights = rows_of(a), b.transpose(-1, -2)
    (m, k), n = tokens.shape, weights.shape[-2]
    token_matrix, copy_tokens = matrix_of(tokens, k_major_only=groups > 0)
    weight_matrix, copy_weights = matrix_of(weights)
    problem = GemmProblem(m, n, k, DTYPE_NAMES[a.dtype], token_matrix.major, weight_matrix.major, groups)
    arch = route(device).arch
    assert arch is not None  # checked tensors on a device that runs kernels
    sms = multiprocessors(device)
    config = select(problem, sms)
    kernel = launcher.kernel(arch, config.name)
    return Plan(
        config, kernel, grid(problem, config, sms), token_matrix.tail, tail_of_groups(weight_matrix), (m, n, k),
        copy_tokens or tokens.data_ptr() != a.data_ptr(), copy_weights,
    )  # fmt: skip


def _make_ragged_k_plan(a: Tensor, b: Tensor, groups: int, device: int, launcher: launch.Launcher) -> Plan:
    """Both operands are seen as windows of rows of K (`kernels/hopper/gemm.py`)."""
    (token_tail, copy_tokens), (weight_tail, copy_weights) = _windows(a.t()), _windows(b)
    (m, k), n = a.shape, b.shape[1]
    problem = GemmProblem(m, n, k, DTYPE_NAMES[a.dtype], "mn", "mn", groups, ragged_k=True)
    arch = route(device).arch
    assert arch is not None  # checked tensors on a device that runs kernels
    sms = multiprocessors(device)
    config = select(problem, sms)
    blocks = grid(problem, config, sms)
    kernel = launcher.kernel(arch, config.name)
    return Plan(config, kernel, blocks, token_tail, weight_tail, (m, n, k), copy_tokens, copy_weights)


def _windows(tensor: Tensor) -> tuple[tuple[int, ...], bool]:
    """Rows of K as windows of WINDOW rows, one beginning with each row; and whether the rows are copied first."""
    matrix, copy = matrix_of(tensor, k_major_only=True)
    inner, rows, pitch = matrix.tail
    return (inner, WINDOW, rows, pitch, pitch), copy
