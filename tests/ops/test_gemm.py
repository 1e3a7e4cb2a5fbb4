from __future__ import annotations

import pytest
import torch

import pyptx_ops
from pyptx_ops.ops.gemm import reference
from tests.ops.inputs import LAYOUTS, LOW, assert_contiguous, randn, relaid
from tests.tolerance import assert_within, product_bound

SIZES = [
    (1, 1, 1),
    (7, 5, 3),
    (1, 64, 129),
    (128, 256, 64),
    (127, 257, 65),
    (129, 255, 63),
    (3, 8, 0),
    (0, 8, 8),
    (8, 0, 8),
]


def check(a, b, bias, out_dtype=None):
    got = pyptx_ops.gemm(a, b, bias, out_dtype=out_dtype)
    wide = [None if t is None else t.double() for t in (a, b, bias)]
    truth = reference(*wide)
    magnitude = reference(*(None if t is None else t.abs() for t in wide))
    assert got.dtype is (out_dtype or a.dtype)
    assert_contiguous(got)
    assert_within(got, truth, product_bound(truth, magnitude, a.shape[-1], got.dtype))


@pytest.mark.parametrize("dtype", LOW)
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("has_bias", [False, True], ids=["plain", "bias"])
def test_sizes(device, dtype, size, has_bias):
    m, n, k = size
    a, b = randn(m, k, device=device, dtype=dtype), randn(k, n, device=device, dtype=dtype)
    bias = randn(n, device=device, dtype=dtype) if has_bias else None
    check(a, b, bias)
    check(a, b, bias, torch.float32)


@pytest.mark.parametrize("a_layout", LAYOUTS)
@pytest.mark.parametrize("b_layout", LAYOUTS)
@pytest.mark.parametrize("size", [(64, 128, 72), (33, 35, 37)], ids=str)
def test_layouts(device, a_layout, b_layout, size):
    m, n, k = size
    a, b = randn(m, k, device=device, dtype=torch.bfloat16), randn(k, n, device=device, dtype=torch.bfloat16)
    check(relaid(a, a_layout), relaid(b, b_layout), None)


@pytest.mark.parametrize("leading", [(), (3,), (2, 3), (2, 0, 3), (1, 1, 1)], ids=str)
def test_leading_dimensions(device, leading):
    a, b = randn(*leading, 24, device=device, dtype=torch.bfloat16), randn(24, 16, device=device, dtype=torch.bfloat16)
    check(a, b, randn(16, device=device, dtype=torch.bfloat16))
    if len(leading) == 2:
        check(a.transpose(0, 1), b, None)


def test_stride_zero(device):
    """As the gradient of a sum comes in."""
    a = randn(1, device=device, dtype=torch.bfloat16).expand(40, 24)
    check(a, randn(24, 16, device=device, dtype=torch.bfloat16), None)
    check(a, randn(1, 16, device=device, dtype=torch.bfloat16).expand(24, 16), None)


def test_bias_is_added_before_the_only_rounding(device):
    """In bf16, 256 + 1 rounds to 256: a sum of 257 and a bias of -256 tell 1 from 0."""
    a = torch.tensor([[256.0, 1.0]], device=device, dtype=torch.bfloat16)
    b, bias = torch.ones(2, 1, device=device, dtype=torch.bfloat16), torch.full((1,), -256.0, device=device).bfloat16()
    assert pyptx_ops.gemm(a, b, bias).item() == 1.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_wide_dtypes(device, dtype):
    a, b, bias = (randn(*s, device=device, dtype=dtype) for s in ((9, 17), (17, 5), (5,)))
    torch.testing.assert_close(pyptx_ops.gemm(a, b, bias), torch.addmm(bias, a, b))


@pytest.mark.parametrize("leading", [(5,), (2, 3), ()], ids=str)
def test_gradients(device, leading):
    a, b, bias = (randn(*s, device=device, grad=True) for s in ((*leading, 7), (7, 4), (4,)))
    assert torch.autograd.gradcheck(pyptx_ops.gemm, (a, b, bias))
    assert torch.autograd.gradgradcheck(pyptx_ops.gemm, (a, b, bias))
    assert torch.autograd.gradcheck(lambda b: pyptx_ops.gemm(a.detach(), b.t().contiguous().t()), (b,))


@pytest.mark.parametrize("dtype", LOW)
def test_low_precision_gradients(device, dtype):
    a, b, bias = (randn(*s, device=device, dtype=dtype, grad=True) for s in ((64, 40), (40, 24), (24,)))
    dy = randn(64, 24, device=device, dtype=dtype)
    kept = dy.clone()
    da, db, dbias = torch.autograd.grad(pyptx_ops.gemm(a, b, bias), (a, b, bias), dy)
    assert torch.equal(dy, kept)
    wide, (x, w) = dy.double(), (a.detach().double(), b.detach().double())
    for got, left, right in ((da, wide, w.t()), (db, x.t(), wide), (dbias, wide.new_ones(1, 64), wide)):
        assert got.dtype is dtype
        truth, magnitude = left @ right, left.abs() @ right.abs()
        bound = product_bound(truth, magnitude, left.shape[-1], dtype)
        assert_within(got, truth.view(got.shape), bound.view(got.shape))


def test_gradient_of_a_wider_result(device):
    a, b = (randn(8, 8, device=device, dtype=torch.bfloat16, grad=True) for _ in range(2))
    pyptx_ops.gemm(a, b, out_dtype=torch.float32).sum().backward()
    assert a.grad.dtype is b.grad.dtype is torch.bfloat16
    truth = b.detach().double().sum(1).expand(8, 8)
    assert_within(a.grad, truth, product_bound(truth, b.detach().double().abs().sum(1).expand(8, 8), 8, torch.bfloat16))


def test_autocast(device):
    x, w = randn(6, 16, device=device, dtype=torch.float32), randn(16, 8, device=device, dtype=torch.bfloat16)
    bias = randn(8, device=device, dtype=torch.float32, grad=True)
    with torch.autocast(device, dtype=torch.bfloat16):
        got = pyptx_ops.gemm(x, w, bias)
        wide = pyptx_ops.gemm(x, w, bias, out_dtype=torch.float32)
    assert got.dtype is torch.bfloat16 and wide.dtype is torch.float32
    assert torch.equal(got, pyptx_ops.gemm(x.bfloat16(), w, bias.bfloat16()))
    got.sum().backward()
    assert bias.grad.dtype is torch.float32 and (bias.grad == 6).all()
