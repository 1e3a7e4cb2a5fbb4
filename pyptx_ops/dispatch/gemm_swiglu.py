"""gemm_swiglu and grouped_gemm_swiglu: products with the weights of gate and up, activated in the kernel.

Gate and up are two views of one tensor w13, of one shape and the same strides: halves or every other column. Each has a
tensor map of its own, so a kernel does not know how they are packed. What no tensor map takes is copied first
(`operands.py`): also alternating columns that are contiguous along N, and tokens that are contiguous along M.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from .. import launch
from ..kernels.hopper.tuning.gemm import GemmProblem
from . import bound, multiprocessors, route
from . import gemm as products
from .gemm import Plan
from .operands import ALIGNMENT, CHUNK, DTYPE_NAMES, ELEMENT_BYTES, matrix_of, padded_copy, rows_of, tail_of_groups

__all__ = ["gemm_swiglu", "grouped_gemm_swiglu"]


def gemm_swiglu(a: Tensor, w13: Tensor, bias: Tensor | None, interleaved: bool) -> Tensor:
    """silu(gate) · up of a (..., K) @ w13 (K, 2 d) + bias (2 d,), on checked CUDA tensors; contiguous (..., d)."""
    out = a.new_empty((*a.shape[:-1], w13.shape[1] // 2))
    _run("gemm_swiglu", (a, w13, bias, interleaved), out, a, w13, None, bias, interleaved)
    return out


def grouped_gemm_swiglu(a: Tensor, w13: Tensor, offs: Tensor, bias: Tensor | None, interleaved: bool) -> Tensor:
    """The same of row groups of a (M, K) with w13 (G, K, 2 d), + bias (G, 2 d); contiguous (M, d)."""
    out = a.new_empty((a.shape[0], w13.shape[2] // 2))
    _run("grouped_gemm_swiglu", (a, w13, offs, bias, interleaved), out, a, w13, offs, bias, interleaved)
    return out


def _run(
    op: str, args: tuple[object, ...], out: Tensor, a: Tensor, w13: Tensor, offs: Tensor | None, bias: Tensor | None,
    interleaved: bool,
) -> None:  # fmt: skip
    """Fill `out`: copy what no tensor map takes, launch, and bind calls of this kind if nothing was copied."""
    if out.numel() == 0:
        return
    if a.shape[-1] == 0:  # only the bias is left: a product over zeros
        a, w13 = a.new_zeros((*a.shape[:-1], CHUNK)), w13.new_zeros((*w13.shape[:-2], CHUNK, w13.shape[-1]))
    groups = 0 if offs is None else w13.shape[0]
    plan = _plan_of(a, w13, groups, interleaved)
    tokens = padded_copy(rows_of(a)) if plan.copy_tokens else a
    gate, up = _weights(w13, interleaved)
    if plan.copy_weights:
        parts: list[Any] = [padded_copy(gate), padded_copy(up)]
    else:
        parts = [w13, (w13, (up.storage_offset() - gate.storage_offset()) * ELEMENT_BYTES)]
    weights = [value for part in parts for value in (part, *plan.weight_tail)]
    operands = (*weights, tokens, *plan.token_tail) if plan.config.swap else (tokens, *plan.token_tail, *weights)
    addend = 0 if bias is None else bias.contiguous()
    bias_steps = (2, 1) if interleaved else (1, out.shape[-1])
    extra = () if offs is None else (offs.contiguous(), groups)
    values = (*operands, out, addend, *plan.sizes, *bias_steps, *extra)
    bound.launch(op, args, plan.kernel, out.get_device(), (plan.blocks, 1, 1), values, (out,))


def _weights(w13: Tensor, interleaved: bool) -> tuple[Tensor, Tensor]:
    """(gate, up), each (d, K) or (G, d, K): views."""
    rows = w13.transpose(-1, -2)
    if interleaved:
        return rows[..., ::2, :], rows[..., 1::2, :]
    half = rows.shape[-2] // 2
    return rows.narrow(-2, 0, half), rows.narrow(-2, half, half)


def _plan_of(a: Tensor, w13: Tensor, groups: int, interleaved: bool) -> Plan:
    """The plan for a call; made once per kind of call."""
    device, launcher = a.get_device(), launch.current_launcher()
    aligned = a.data_ptr() % ALIGNMENT == 0, w13.data_ptr() % ALIGNMENT == 0
    kind = "swiglu", interleaved, a.shape, a.stride(), w13.shape, w13.stride(), a.dtype, aligned, groups
    return products.kept_plan((*kind, device, launcher), lambda: _make_plan(a, w13, groups, interleaved, device))


def _make_plan(a: Tensor, w13: Tensor, groups: int, interleaved: bool, device: int) -> Plan:
    tokens, parts = rows_of(a), _weights(w13, interleaved)
    (m, k), n = tokens.shape, parts[0].shape[-2]
    token_matrix, copy_tokens = matrix_of(tokens, k_major_only=True)
    described = [matrix_of(part) for part in parts]
    weight_matrix, copy_weights = next((each for each in described if each[1]), described[0])  # one address may not fit
    problem = GemmProblem(
        m, n, k, DTYPE_NAMES[a.dtype], token_matrix.major, weight_matrix.major, groups, swiglu=True
    )  # fmt: skip
    arch = route(device).arch
    assert arch is not None  # checked tensors on a device that runs kernels
    sms = multiprocessors(device)
    config = products.select(problem, sms)
    return Plan(
        config, launch.current_launcher().kernel(arch, config.name), products.grid(problem, config, sms),
        token_matrix.tail, tail_of_groups(weight_matrix), (m, n, k),
        copy_tokens or tokens.data_ptr() != a.data_ptr(), copy_weights,
    )  # fmt: skip
