from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import pyptx_ops
from pyptx_ops.ops.swiglu import reference
from tests.ops.inputs import LAYOUTS, LOW, assert_contiguous, ends, randn, relaid
from tests.tolerance import assert_within, silu_bound

DTYPES = (*LOW, torch.float32)


def check(got, gate, up, rows=None):
    truth = reference(gate.double(), up.double())
    if rows is not None:
        truth[rows:] = 0
        assert (got[rows:] == 0).all()
    assert got.dtype is gate.dtype
    assert_contiguous(got)
    assert_within(got, truth, silu_bound(truth, gate, gate.dtype) + 0 * truth)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [0, 1, 7, 8, 129, 2048])
@pytest.mark.parametrize("leading", [(), (0,), (5,), (2, 3)], ids=str)
def test_sizes(device, dtype, width, leading):
    x = randn(*leading, 2 * width, device=device, dtype=dtype, scale=4)
    halves = x[..., :width], x[..., width:]
    check(pyptx_ops.silu_and_mul(x), *halves)
    check(pyptx_ops.swiglu(*halves), *halves)
    check(pyptx_ops.silu_and_mul(x, interleaved=True), x[..., ::2], x[..., 1::2])


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("other", LAYOUTS)
def test_layouts(device, layout, other):
    gate, up = randn(3, 6, 40, device=device).bfloat16(), randn(3, 6, 40, device=device).bfloat16()
    gate, up = relaid(gate, layout), relaid(up, other)
    check(pyptx_ops.swiglu(gate, up), gate, up)
    check(pyptx_ops.swiglu(gate.transpose(0, 1), up.transpose(0, 1)), gate.transpose(0, 1), up.transpose(0, 1))
    check(pyptx_ops.silu_and_mul(gate), gate[..., :20], gate[..., 20:])
    check(pyptx_ops.silu_and_mul(gate, True), gate[..., ::2], gate[..., 1::2])


@pytest.mark.parametrize("dtype", DTYPES)
def test_extremes(device, dtype):
    info = torch.finfo(dtype)
    gate = torch.tensor([0.0, -0.0, info.max, -info.max, info.tiny, 100.0, -100.0, -20.0], device=device, dtype=dtype)
    got = pyptx_ops.swiglu(gate, torch.ones_like(gate))
    check(got, gate, torch.ones_like(gate))
    infinite = torch.tensor([float("inf"), float("nan")], device=device, dtype=dtype)
    got = pyptx_ops.swiglu(infinite, torch.ones_like(infinite))
    assert got[0] == float("inf") and got[1].isnan()


def test_reference_is_torch_in_fp64(device):
    gate, up = randn(4, 9, device=device), randn(4, 9, device=device)
    torch.testing.assert_close(reference(gate, up), F.silu(gate) * up)


@pytest.mark.parametrize("groups", [(0,), (3, 3, 7), (9, 9), (0, 0), (1, 2, 3)], ids=str)
def test_padding_rows_are_zero(device, groups):
    gate, up = randn(9, 24, device=device).bfloat16(), randn(9, 24, device=device).bfloat16()
    gate[groups[-1] :] = up[groups[-1] :] = float("nan")
    check(pyptx_ops.swiglu(gate, up, ends(*groups, device=device)), gate, up, groups[-1])


def test_padding_rows_of_gradients_are_zero(device):
    gate, up = (randn(9, 24, device=device, dtype=torch.float32) for _ in range(2))
    dy = randn(9, 24, device=device, dtype=torch.float32)
    for t in (gate, up, dy):
        t[7:] = float("nan")
    gate.requires_grad_(), up.requires_grad_()
    got = torch.autograd.grad(pyptx_ops.swiglu(gate, up, ends(2, 7, device=device)), (gate, up), dy)
    wanted = torch.autograd.grad(pyptx_ops.swiglu(gate[:7], up[:7]), (gate, up), dy[:7])
    for g, w in zip(got, wanted, strict=True):
        assert (g[7:] == 0).all()
        torch.testing.assert_close(g[:7], w[:7])


def test_gradients(device):
    gate, up = (randn(5, 3, device=device, grad=True) for _ in range(2))
    offs = ends(1, 4, device=device)
    for op, args in (
        (pyptx_ops.swiglu, (gate, up)),
        (pyptx_ops.swiglu, (gate, up, offs)),
        (pyptx_ops.silu_and_mul, (randn(2, 3, 4, device=device, grad=True),)),
        (pyptx_ops.silu_and_mul, (randn(3, 4, device=device, grad=True), True)),
        (pyptx_ops.silu_and_mul, (randn(4, device=device, grad=True),)),
    ):
        assert torch.autograd.gradcheck(op, args)
        assert torch.autograd.gradgradcheck(op, args)


@pytest.mark.parametrize("dtype", LOW)
def test_low_precision_gradients(device, dtype):
    gate, up = (randn(6, 40, device=device, dtype=dtype, grad=True) for _ in range(2))
    dy = randn(6, 40, device=device, dtype=dtype)
    got = torch.autograd.grad(pyptx_ops.swiglu(gate, up), (gate, up), dy)
    wide = [t.detach().double().requires_grad_() for t in (gate, up)]
    wanted = torch.autograd.grad(F.silu(wide[0]) * wide[1], wide, dy.double())
    for g, w in zip(got, wanted, strict=True):
        assert g.dtype is dtype
        assert_within(g, w, silu_bound(w, gate.detach(), dtype) + 2.0**-20)
