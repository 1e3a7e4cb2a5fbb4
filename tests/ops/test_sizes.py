"""Sizes past what kernels count in 32 bits: parts, the reference path, or a refusal; never a wrong answer.

Such tensors are views of one element or have no memory here, and the limits of the parts are lowered to sizes that a
simulated kernel takes.
"""

from __future__ import annotations

import math

import pytest
import torch

import pyptx_ops
from pyptx_ops.dispatch import gemm, norm, swiglu
from pyptx_ops.trials.bounds import norm_excess, product_excess
from tests.ops.inputs import ends, randn

BF16 = torch.bfloat16
MOST = 2**31 - 1
RANGES = {"u32": (0, 2**32 - 1), "u64": (0, 2**64 - 1), "i64": (-(2**63), 2**63 - 1), "pointer": (0, 2**64 - 1)}


def huge(*shape):
    """A tensor of any size in the memory of one element."""
    return torch.zeros((), dtype=BF16).expand(shape)


def unmade(*shape):
    return torch.empty(shape, dtype=BF16, device="meta")


@pytest.fixture
def products(monkeypatch):
    """The (rows, columns, K) of the products that go to a kernel, whose limit is 64."""
    monkeypatch.setattr(gemm, "MOST", 64)
    monkeypatch.setattr(gemm, "PART", 64)
    seen, run = [], gemm._run

    def recorded(op, args, out, a, b, *rest):
        seen.append((a.shape[:-1].numel(), *b.shape[-2:][::-1]))
        run(op, args, out, a, b, *rest)

    monkeypatch.setattr(gemm, "_run", recorded)
    return seen


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("out_dtype", [None, torch.float32])
@pytest.mark.parametrize("m, n, k", [(150, 24, 40), (20, 200, 40), (20, 24, 200), (66, 65, 129), (64, 64, 64)])
def test_gemm_in_parts(products, m, n, k, out_dtype, bias):
    a, b = randn(m, k, device="cpu", dtype=BF16), randn(n, k, device="cpu", dtype=BF16).t()
    addend = randn(n, device="cpu", dtype=BF16) if bias else None
    with pyptx_ops.simulate():
        out = pyptx_ops.gemm(a, b, addend, out_dtype=out_dtype)
        assert len(products) == math.prod(-(-size // 64) for size in (m, n, k))
        assert all(max(sizes) <= 64 for sizes in products)
        again = pyptx_ops.gemm(a.view(2, m // 2, k), b, addend, out_dtype=out_dtype)
    assert out.dtype is (out_dtype or BF16) and product_excess(out, a, b, addend) <= 1
    assert torch.equal(again.flatten(0, 1), out)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("groups, m", [(5, 13), (7, 40), (3, 64), (4, 16)])
def test_pairs_in_parts(products, groups, m, bias):
    a, b = randn(groups, m, 24, device="cpu", dtype=BF16), randn(groups, 24, 16, device="cpu", dtype=BF16)
    addend = randn(groups, 16, device="cpu", dtype=BF16) if bias else None
    with pyptx_ops.simulate():
        out = pyptx_ops.grouped_gemm(a, b, bias=addend)
    assert len(products) == -(-groups // (64 // m)) and all(rows <= 64 for rows, *_ in products)
    for g in range(groups):
        assert product_excess(out[g], a[g], b[g], None if addend is None else addend[g]) <= 1


@pytest.mark.parametrize("limit", [MOST, 64])
def test_gradients_of_pairs(monkeypatch, limit):
    """Past the limit, ends of all the pairs' rows would not be int32: another product gives the same gradients."""
    monkeypatch.setattr(gemm, "MOST", limit)
    a, b, dy = (randn(*shape, device="cpu", dtype=BF16, grad=True) for shape in ((5, 13, 24), (5, 24, 16), (5, 13, 16)))
    with pyptx_ops.simulate():
        da, db = torch.autograd.grad(pyptx_ops.grouped_gemm(a, b), (a, b), dy)
    for g in range(5):
        assert product_excess(da[g], dy[g].detach(), b[g].detach().t()) <= 1
        assert product_excess(db[g], a[g].detach().t(), dy[g].detach()) <= 1


@pytest.mark.parametrize(
    "a, b, groups, message",
    [
        ((MOST + 1, 8), (2, 8, 8), 2, r"a has shape \(2147483648, 8\), wanted sizes of at most 2147483647"),
        ((4, 8), (2, 8, MOST + 1), 2, r"b has shape \(2, 8, 2147483648\), wanted sizes of at most 2147483647"),
        ((8, MOST + 1), (MOST + 1, 8), 2, r"a has shape \(8, 2147483648\), wanted sizes of at most 2147483647"),
        ((2, MOST + 1, 8), (8, 4), 2, r"a has shape \(2, 2147483648, 8\), wanted sizes of at most 2147483647"),
        ((2, MOST + 1, 8), (2, 8, 4), None, r"a has shape \(2, 2147483648, 8\), wanted sizes of at most 2147483647"),
        ((2**29, 16), (16, 1), 4, r"a has shape \(536870912, 16\), wanted .* G \* M of at most 2147483647, .* G = 4"),
    ],
)
def test_refused_sizes_of_groups(a, b, groups, message):
    offs = None if groups is None else ends(*range(1, groups + 1), device="cpu")
    with pyptx_ops.simulate(), pytest.raises(ValueError, match=f"^grouped_gemm: {message}"):
        pyptx_ops.grouped_gemm(huge(*a), huge(*b), offs)


def test_refused_number_of_groups():
    offs = torch.zeros((), dtype=torch.int32).expand(MOST + 1)
    refusal = r"^grouped_gemm: offs has shape \(2147483648,\), wanted sizes of at most 2147483647"
    with pyptx_ops.simulate(), pytest.raises(ValueError, match=refusal):
        pyptx_ops.grouped_gemm(huge(4, 8), huge(8, 4), offs)


@pytest.mark.parametrize("sizes", [(MOST, 8, 8), (8, MOST, 8), (8, 8, MOST), (MOST, 1, 1), (1, 1, MOST)])
@pytest.mark.parametrize("groups", [0, 1, 3])
def test_the_largest_sizes_fit_the_parameters(sizes, groups):
    m, n, k = sizes
    with pyptx_ops.simulate():
        plan = gemm.plan_of(unmade(m, k), unmade(n, k).t() if not groups else unmade(groups, k, n), groups)
    assert plan.sizes == sizes and 0 < plan.blocks <= MOST
    tiles = -(-m // plan.config.tokens) * -(-n // plan.config.weights)
    assert tiles + max(groups, 1) * -(-n // plan.config.weights) <= MOST
    for tail in (plan.token_tail, plan.weight_tail):
        rank = (len(tail) + 1) // 2
        assert all(1 <= size <= 2**32 for size in tail[:rank]) and all(0 < step < 2**40 for step in tail[rank:])


def test_long_rows_take_the_reference_path(monkeypatch):
    assert norm.takes(unmade(1, MOST)) and not norm.takes(unmade(1, MOST + 1))
    monkeypatch.setattr(norm, "MOST", 8)
    monkeypatch.setattr(norm, "_run", None)
    x, residual, weight = (randn(*shape, device="cpu", dtype=BF16) for shape in ((3, 9), (3, 9), (9,)))
    with pyptx_ops.simulate():
        assert norm_excess(pyptx_ops.rms_norm(x, weight), x, weight, 1e-6) <= 1
        y, total = pyptx_ops.fused_add_rms_norm(x, residual, weight)
        pyptx_ops.fused_add_rms_norm_(x, residual, weight)
    assert torch.equal(x, y) and torch.equal(residual, total)


@pytest.mark.parametrize("shape", [(1, MOST), (2**33, 8), (2**36 + 3, 1), (2**20, 2**18), (2**31, 2, 8)])
def test_the_most_rows_fit_the_parameters(shape):
    """Rows and element offsets are 64 bits wide."""
    x = unmade(*shape)
    with pyptx_ops.simulate():
        plan = norm.plan_of(x, None, None, aligned=True, in_place=False)
        call = swiglu.Call("swiglu", (x, x, None), x.shape, (x, x), out=x, outputs=(x,))
        gate = swiglu._plan(call, True, -1, pyptx_ops.launch.current_launcher())
    rows = x.numel() // shape[-1]
    for planned, parameters in ((plan, plan.kernel.params), (gate, gate.kernel.params)):
        for value, parameter in zip(reversed(planned.tail), reversed(parameters)):
            if parameter.kind in RANGES:
                low, high = RANGES[parameter.kind]
                assert low <= value <= high, parameter
        assert rows in planned.tail
    assert plan.grid[0] <= MOST and plan.grid[1] <= 65535 and gate.blocks <= MOST
    assert plan.grid[0] * plan.grid[1] * plan.config.rows >= rows * plan.config.cluster


@pytest.mark.parametrize("eps, offset", [(1e300, 0.0), (math.inf, 0.0), (1e-6, 1e39), (1e-6, -1e300), (1e-6, math.nan)])
def test_numbers_past_fp32(eps, offset):
    """As torch adds them to fp32: infinities."""
    x, weight = randn(4, 16, device="cpu", dtype=BF16), randn(16, device="cpu", dtype=BF16)
    expected = pyptx_ops.rms_norm(x, weight, eps, offset)
    with pyptx_ops.simulate():
        torch.testing.assert_close(pyptx_ops.rms_norm(x, weight, eps, offset), expected, equal_nan=True)
