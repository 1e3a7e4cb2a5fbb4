from __future__ import annotations

import pytest
import torch

import pyptx_ops
from pyptx_ops.ops import _ragged
from pyptx_ops.ops.grouped_gemm import reference
from tests.ops.inputs import LAYOUTS, LOW, assert_contiguous, ends, randn, relaid
from tests.tolerance import assert_within, product_bound

GROUPS = [(5,), (0,), (3, 3, 7), (0, 0, 0), (0, 0, 9), (9, 9, 9), (1, 2, 3, 4), (64, 64, 191, 192), (127, 256)]


def tail(offs, rows):
    """A row count with some rows past the last group, and none."""
    return max(offs) + rows


def truth_of(a, b, offs, bias=None):
    """Group by group in fp64, apart from the op's own code."""
    out, start = torch.zeros(a.shape[0], b.shape[2], dtype=torch.float64, device=a.device), 0
    for group, end in enumerate(offs.tolist()):
        out[start:end] = a[start:end].double() @ b[group].double() + (0 if bias is None else bias[group].double())
        start = end
    return out


def check(a, b, offs, bias=None, out_dtype=None):
    got = pyptx_ops.grouped_gemm(a, b, offs, bias, out_dtype=out_dtype)
    truth = truth_of(a, b, offs, bias)
    magnitude = truth_of(a.abs(), b.abs(), offs, None if bias is None else bias.abs())
    assert got.dtype is (out_dtype or a.dtype)
    assert_contiguous(got)
    assert_within(got, truth, product_bound(truth, magnitude, a.shape[1], got.dtype))
    assert (got[int(offs[-1]) :] == 0).all()


@pytest.mark.parametrize("dtype", LOW)
@pytest.mark.parametrize("groups", GROUPS, ids=str)
@pytest.mark.parametrize("rows_past", [0, 3])
@pytest.mark.parametrize("has_bias", [False, True], ids=["plain", "bias"])
def test_groups(device, dtype, groups, rows_past, has_bias):
    rows, n, k = tail(groups, rows_past), 24, 40
    a = randn(rows, k, device=device, dtype=dtype)
    a[groups[-1] :] = float("nan")
    b = randn(len(groups), n, k, device=device, dtype=dtype).transpose(1, 2)
    bias = randn(len(groups), n, device=device, dtype=dtype) if has_bias else None
    check(a, b, ends(*groups, device=device), bias)


@pytest.mark.parametrize("size", [(1, 1), (3, 5), (64, 0), (0, 64), (129, 65)], ids=str)
def test_sizes(device, size):
    n, k = size
    a, b = randn(20, k, device=device, dtype=torch.bfloat16), randn(3, k, n, device=device, dtype=torch.bfloat16)
    bias = randn(3, n, device=device, dtype=torch.bfloat16)
    check(a, b, ends(4, 4, 17, device=device), bias)
    check(a, b, ends(4, 4, 17, device=device), bias, torch.float32)


@pytest.mark.parametrize("a_layout", LAYOUTS)
@pytest.mark.parametrize("b_layout", LAYOUTS)
def test_layouts(device, a_layout, b_layout):
    a, b = randn(21, 72, device=device, dtype=torch.bfloat16), randn(3, 72, 48, device=device, dtype=torch.bfloat16)
    check(relaid(a, a_layout), relaid(b, b_layout), ends(4, 4, 17, device=device))


def test_many_groups(device):
    sizes = torch.randint(0, 3, (1100,))
    offs = sizes.cumsum(0).to(device, torch.int32)
    a, b = randn(int(offs[-1]) + 5, 16, device=device, dtype=torch.bfloat16), randn(1100, 16, 8, device=device)
    check(a, b.bfloat16(), offs, randn(1100, 8, device=device, dtype=torch.bfloat16))


def test_offs_with_a_stride(device):
    offs = torch.tensor([[4, -1], [4, -1], [17, -1]], dtype=torch.int32, device=device)[:, 0]
    assert not offs.is_contiguous()
    check(randn(17, 16, device=device, dtype=torch.bfloat16), randn(3, 16, 8, device=device).bfloat16(), offs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_wide_dtypes(device, dtype):
    a, b, bias = (randn(*s, device=device, dtype=dtype) for s in ((9, 7), (3, 7, 5), (3, 5)))
    offs = ends(2, 2, 8, device=device)
    got = pyptx_ops.grouped_gemm(a, b, offs, bias)
    torch.testing.assert_close(got, truth_of(a, b, offs, bias).to(dtype))


@pytest.mark.parametrize("groups", GROUPS, ids=str)
@pytest.mark.parametrize("rows_past", [0, 2])
def test_products_that_do_not_read_offs(device, groups, rows_past):
    """The formulation for devices whose `offs` must not be waited for, against the loop."""
    rows, offs = tail(groups, rows_past), ends(*groups, device=device)
    a, dy = randn(rows, 6, device=device), randn(rows, 5, device=device)
    a[groups[-1] :] = dy[groups[-1] :] = float("nan")
    b, bias = randn(len(groups), 6, 5, device=device), randn(len(groups), 5, device=device)
    product = _ragged.grouped_product_tiled(a, b, offs, bias, torch.float64)
    torch.testing.assert_close(product, truth_of(a, b, offs, bias))
    weight = _ragged.grouped_wgrad_tiled(a, dy, offs, torch.float64)
    torch.testing.assert_close(weight, _ragged.grouped_wgrad(a, dy, offs.tolist(), torch.float64))


@pytest.mark.parametrize("bad, nearest", [((3, 9), (3, 6)), ((100, 200), (6, 6)), ((-3, 2), (0, 2)), ((5, 1), (5, 5))])
def test_bad_offs_that_are_not_read(device, bad, nearest):
    """Nothing out of bounds is touched: the nearest good ends are taken."""
    a, dy, b = (randn(*shape, device=device) for shape in ((6, 4), (6, 5), (2, 4, 5)))
    for function, other, options in (
        (_ragged.grouped_product_tiled, b, (None,)),
        (_ragged.grouped_wgrad_tiled, dy, ()),
    ):
        got, wanted = (
            function(a, other, ends(*offs, device=device), *options, torch.float64) for offs in (bad, nearest)
        )
        torch.testing.assert_close(got, wanted, rtol=0, atol=0)


@pytest.mark.parametrize("groups", [(3, 3, 7), (0, 4, 4), (0, 0, 0), (9, 9, 9)], ids=str)
def test_gradients(device, groups):
    a, bias = randn(9, 4, device=device, grad=True), randn(3, 5, device=device, grad=True)
    b = randn(3, 5, 4, device=device, grad=True)
    offs = ends(*groups, device=device)

    def op(a, b, bias):
        return pyptx_ops.grouped_gemm(a, b.transpose(1, 2), offs, bias)

    assert torch.autograd.gradcheck(op, (a, b, bias))
    assert torch.autograd.gradgradcheck(op, (a, b, bias))


@pytest.mark.parametrize("dtype", LOW)
@pytest.mark.parametrize("size", [(24, 40), (23, 41)], ids=str)
def test_low_precision_gradients(device, dtype, size):
    """Garbage past the last group, in the rows and in the incoming gradient, reaches nothing; empty groups get zero."""
    n, k = size
    groups = (30, 30, 77, 77, 90)
    a, b = randn(100, k, device=device, dtype=dtype), randn(5, k, n, device=device, dtype=dtype)
    dy, bias = randn(100, n, device=device, dtype=dtype), randn(5, n, device=device, dtype=dtype)
    a[90:] = dy[90:] = float("nan")
    inputs = [t.requires_grad_() for t in (a, b, bias)]
    kept = dy.clone()
    got = pyptx_ops.grouped_gemm(a, b, ends(*groups, device=device), bias)
    da, db, dbias = torch.autograd.grad(got, inputs, dy)
    assert torch.equal(dy.view(torch.int16), kept.view(torch.int16))
    assert da.dtype is db.dtype is dbias.dtype is dtype
    assert (da[90:] == 0).all()
    start = 0
    for group, end in enumerate(groups):
        x, g, w = (t.detach().double() for t in (a[start:end], dy[start:end], b[group]))
        for part, left, right in (
            (da[start:end], g, w.t()),
            (db[group], x.t(), g),
            (dbias[group : group + 1], g.new_ones(1, end - start), g),
        ):
            bound = product_bound(left @ right, left.abs() @ right.abs(), left.shape[1], dtype)
            assert_within(part, left @ right, bound, f"group {group}")
        if start == end:
            assert (db[group] == 0).all() and (dbias[group] == 0).all()
        start = end


def test_autocast(device):
    a, b = randn(6, 16, device=device, dtype=torch.float32, grad=True), randn(2, 16, 8, device=device).bfloat16()
    offs = ends(2, 5, device=device)
    with torch.autocast(device, dtype=torch.bfloat16):
        got = pyptx_ops.grouped_gemm(a, b, offs)
    assert got.dtype is torch.bfloat16
    assert torch.equal(got, pyptx_ops.grouped_gemm(a.bfloat16(), b, offs))
    got.float().sum().backward()
    assert a.grad.dtype is torch.float32


def test_reference_in_fp64_is_the_truth(device):
    a, b, bias, offs = randn(9, 7, device=device), randn(3, 7, 5, device=device), None, ends(2, 2, 8, device=device)
    torch.testing.assert_close(reference(a, b, offs, bias), truth_of(a, b, offs))
