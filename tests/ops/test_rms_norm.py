from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import pyptx_ops
from pyptx_ops.ops.fused_add_rms_norm import reference as fused_reference
from pyptx_ops.ops.rms_norm import reference
from tests.ops.inputs import LAYOUTS, LOW, assert_contiguous, randn, relaid
from tests.tolerance import assert_within, norm_bound, rounding_bound

DTYPES = (*LOW, torch.float32)
HIDDEN = [1, 7, 8, 64, 127, 1024, 4097]
ROUNDINGS = [(0.0, True), (0.0, False), (1.0, True), (1.0, False)]


def check(x, weight, eps=1e-6, offset=0.0, cast=True):
    got = pyptx_ops.rms_norm(x, weight, eps, offset, cast)
    truth = reference(x.double(), None if weight is None else weight.double(), eps, offset, cast)
    assert got.dtype is x.dtype
    assert_contiguous(got)
    assert_within(got, truth, norm_bound(truth, x.shape[-1], x.dtype, 2 if cast and weight is not None else 1))
    return got


def check_fused(x, residual, weight, eps=1e-6, offset=0.0, cast=True):
    before = x.clone(), residual.clone()
    y, total = pyptx_ops.fused_add_rms_norm(x, residual, weight, eps, offset, cast)
    assert torch.equal(x, before[0]) and torch.equal(residual, before[1])
    wide = None if weight is None else weight.double()
    truth, true_total = fused_reference(x.double(), residual.double(), wide, eps, offset, cast)
    for got in (y, total):
        assert got.dtype is x.dtype
        assert_contiguous(got)
    roundings = 2 if cast and weight is not None else 1
    # A sum of opposite values is exact up to one fp32 rounding of the inputs' size.
    slack = (x.double().abs() + residual.double().abs()) * 2.0**-24
    rstd = 1 / (true_total.square().mean(-1, keepdim=True) + eps).sqrt()
    factor = 1.0 if wide is None else (wide + offset).abs()
    assert_within(y, truth, norm_bound(truth, x.shape[-1], x.dtype, roundings) + 2 * slack * rstd * factor, "y")
    assert_within(total, true_total, rounding_bound(true_total, x.dtype) + slack, "residual_out")
    return y, total


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("hidden", HIDDEN)
@pytest.mark.parametrize("rows", [0, 1, 5])
def test_sizes(device, dtype, hidden, rows):
    x, residual = (randn(rows, hidden, device=device, dtype=dtype) for _ in range(2))
    weight = randn(hidden, device=device, dtype=dtype)
    check(x, weight)
    check(x, None)
    check_fused(x, residual, weight)
    check_fused(x, residual, None)


@pytest.mark.parametrize("offset, cast", ROUNDINGS)
@pytest.mark.parametrize("weight_dtype", [torch.bfloat16, torch.float32, torch.float16])
def test_weights(device, offset, cast, weight_dtype):
    x, residual = (randn(6, 320, device=device, dtype=torch.bfloat16) for _ in range(2))
    weight = randn(320, device=device, dtype=weight_dtype)
    check(x, weight, 1e-5, offset, cast)
    check_fused(x, residual, weight, 1e-5, offset, cast)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("other", LAYOUTS)
def test_layouts(device, layout, other):
    x, residual = (randn(3, 5, 72, device=device, dtype=torch.bfloat16) for _ in range(2))
    weight = relaid(randn(72, device=device, dtype=torch.bfloat16).expand(2, 72), other)[0]
    check(relaid(x, layout), weight)
    check(relaid(x, layout)[:, 1:4], weight)
    check_fused(relaid(x, layout), relaid(residual, other), weight)
    check(relaid(x, layout)[0, 0], weight)


def test_reference_is_torch_in_fp64(device):
    x, weight = randn(4, 33, device=device), randn(33, device=device)
    torch.testing.assert_close(reference(x, weight, 1e-5), F.rms_norm(x, (33,), weight, 1e-5))
    torch.testing.assert_close(reference(x, None, 1e-5), F.rms_norm(x, (33,), None, 1e-5))
    torch.testing.assert_close(reference(x, weight, 1e-5, 1.0, False), F.rms_norm(x, (33,), weight + 1, 1e-5))


@pytest.mark.parametrize("dtype", LOW)
@pytest.mark.parametrize("offset", [0.0, 1.0])
@pytest.mark.parametrize("fused", [False, True], ids=["norm", "add norm"])
def test_each_rounding_is_what_it_says(device, dtype, offset, fused):
    """Bit for bit, on elements whose roundings cannot be tipped by the last bits of an fp32 intermediate."""
    x, weight = randn(64, 512, device=device, dtype=dtype), randn(512, device=device, dtype=dtype)
    residual = randn(64, 512, device=device, dtype=dtype)
    values = x.double() + residual.double() if fused else x.double()
    unit = values / (values.square().mean(-1, keepdim=True) + 1e-6).sqrt()
    factor = weight.double() + offset
    results = {}
    for cast in (True, False):
        product = (unit.to(dtype).double() if cast else unit) * factor
        firm = _firm(product, dtype) & (_firm(unit, dtype) if cast else True)
        results[cast] = product.to(dtype), firm
        got = (
            pyptx_ops.fused_add_rms_norm(x, residual, weight, 1e-6, offset, cast)[0]
            if fused
            else pyptx_ops.rms_norm(x, weight, 1e-6, offset, cast)
        )
        assert torch.equal(got[firm], product.to(dtype)[firm])
    differ = (results[True][0] != results[False][0]) & results[True][1] & results[False][1]
    assert differ.float().mean() > 0.1


def _firm(values, dtype):
    """Whether values moved by 2^-18 of themselves still round to the same number."""
    return (values * (1 + 2.0**-18)).to(dtype) == (values * (1 - 2.0**-18)).to(dtype)


def test_statistics_come_from_the_unrounded_sum(device):
    """256 + 1 is 256 in bf16. Rounded sums would all be equal and normalise to exactly 1."""
    x = torch.full((1, 64), 256.0, device=device, dtype=torch.bfloat16)
    residual = torch.tensor([1.0, -1.0] * 32, device=device, dtype=torch.bfloat16).view(1, 64)
    residual[0, 0] = 63.0
    y, total = pyptx_ops.fused_add_rms_norm(x, residual, None, 0.0)
    truth, _ = fused_reference(x.double(), residual.double(), None, 0.0)
    assert torch.equal(y, truth.bfloat16())
    rounded = reference(total.double(), None, 0.0).bfloat16()
    assert not torch.equal(y, rounded)


@pytest.mark.parametrize("offset, cast", ROUNDINGS)
@pytest.mark.parametrize("has_weight", [True, False])
def test_gradients(device, offset, cast, has_weight):
    x, residual = (randn(3, 5, device=device, grad=True) for _ in range(2))
    weight = randn(5, device=device, grad=True) if has_weight else None
    offset = offset if has_weight else 0.0
    options = (1e-5, offset, cast)
    for op, args in (
        (pyptx_ops.rms_norm, (x, weight)),
        (pyptx_ops.fused_add_rms_norm, (x, residual, weight)),
        (lambda *a: pyptx_ops.fused_add_rms_norm(*a)[0], (x, residual, weight)),
        (lambda *a: pyptx_ops.fused_add_rms_norm(*a)[1], (x, residual, weight)),
    ):
        assert torch.autograd.gradcheck(op, (*args, *options))
        assert torch.autograd.gradgradcheck(op, (*args, *options))


@pytest.mark.parametrize("needs", ["x", "residual", "weight"])
def test_gradient_of_one_input(device, needs):
    inputs = {
        "x": randn(3, 5, device=device),
        "residual": randn(3, 5, device=device),
        "weight": randn(5, device=device),
    }
    inputs[needs].requires_grad_()
    y, total = pyptx_ops.fused_add_rms_norm(**inputs)
    (got,) = torch.autograd.grad((y.square() + total).sum(), inputs[needs])
    twin = {name: t.detach().requires_grad_(name == needs) for name, t in inputs.items()}
    total = twin["x"] + twin["residual"]
    y = F.rms_norm(total, (5,), twin["weight"], 1e-6)
    (wanted,) = torch.autograd.grad((y.square() + total).sum(), twin[needs], allow_unused=True)
    torch.testing.assert_close(got, torch.zeros_like(inputs[needs]) if wanted is None else wanted)


@pytest.mark.parametrize("cast", [True, False])
def test_low_precision_gradients(device, cast):
    x, weight = randn(9, 64, device=device).bfloat16().requires_grad_(), randn(64, device=device).requires_grad_()
    dy = randn(9, 64, device=device, dtype=torch.bfloat16)
    dx, dw = torch.autograd.grad(pyptx_ops.rms_norm(x, weight, 1e-6, 0.0, cast), (x, weight), dy)
    wide = x.detach().double().requires_grad_()
    truth = torch.autograd.grad(F.rms_norm(wide, (64,), weight, 1e-6), (wide, weight), dy.double())
    assert dx.dtype is torch.bfloat16 and dw.dtype is torch.float64
    # dx is a difference of terms of the size of the row's largest; dw sums 9 terms that may each be rounded once.
    assert_within(dx, truth[0], 2.0**-8 * truth[0].abs() + 2.0**-16 * truth[0].abs().amax(-1, keepdim=True))
    unit = F.rms_norm(wide.detach(), (64,), None, 1e-6)
    assert_within(dw, truth[1], 2.0**-8 * (unit.abs() * dy.abs()).sum(0))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_in_place(device, layout, dtype):
    x, residual = (relaid(randn(6, 72, device=device, dtype=dtype), layout) for _ in range(2))
    weight = randn(72, device=device, dtype=dtype)
    y, total = pyptx_ops.fused_add_rms_norm(x, residual, weight)
    pointers, versions = (x.data_ptr(), residual.data_ptr()), (x._version, residual._version)
    assert pyptx_ops.fused_add_rms_norm_(x, residual, weight) is None
    assert torch.equal(x, y) and torch.equal(residual, total)
    assert (x.data_ptr(), residual.data_ptr()) == pointers
    assert x._version > versions[0] and residual._version > versions[1]


@pytest.mark.parametrize("dtype", DTYPES)
def test_in_place_on_parts_of_one_tensor(device, dtype):
    """Columns side by side are apart; rows that begin in another operand's are not, known kind of call or not."""
    weight = randn(8, device=device, dtype=dtype)
    for _ in range(2):
        both = randn(4, 16, device=device, dtype=dtype)
        y, total = pyptx_ops.fused_add_rms_norm(both[:, :8], both[:, 8:], weight)
        pyptx_ops.fused_add_rms_norm_(both[:, :8], both[:, 8:], weight)
        assert torch.equal(both, torch.cat((y, total), -1))
    flat = randn(64, device=device, dtype=dtype)
    pyptx_ops.fused_add_rms_norm_(flat[:32].view(4, 8), flat[32:].view(4, 8), weight)
    kept = flat.clone()
    for start in (8, 12, 31):
        with pytest.raises(ValueError, match="residual shares memory with x"):
            pyptx_ops.fused_add_rms_norm_(flat[:32].view(4, 8), flat[start : start + 32].view(4, 8), weight)
    assert torch.equal(flat, kept)


def test_in_place_refuses_what_it_cannot_do(device):
    x, weight = randn(2, 8, device=device), randn(8, device=device)
    with pytest.raises(ValueError, match="residual shares memory with x"):
        pyptx_ops.fused_add_rms_norm_(x, x, weight)
    with pytest.raises(ValueError, match="x has strides"):
        pyptx_ops.fused_add_rms_norm_(x[:1].expand(2, 8), x.clone(), weight)
    kept = x.clone()
    with pytest.raises(ValueError, match="weight shares memory with x"):
        pyptx_ops.fused_add_rms_norm_(x, x.clone(), x[1])
    assert torch.equal(x, kept)
    residual = x.clone().requires_grad_()
    with pytest.raises(RuntimeError, match="requires grad"):
        pyptx_ops.fused_add_rms_norm_(x, residual, weight)
    with torch.autograd.forward_ad.dual_level(), pytest.raises(RuntimeError, match="no derivative"):
        pyptx_ops.fused_add_rms_norm_(torch.autograd.forward_ad.make_dual(x, x.clone()), x.clone(), weight)
    kept, version = x.clone(), x._version
    with pytest.raises(ValueError, match="weight has shape"):
        pyptx_ops.fused_add_rms_norm_(x, x.clone(), weight[1:])
    assert x._version == version
    with torch.no_grad():
        pyptx_ops.fused_add_rms_norm_(x, residual, weight)
    assert not torch.equal(x, kept)


def test_in_place_invalidates_saved_tensors(device):
    x, residual, weight = (randn(*s, device=device) for s in ((2, 8), (2, 8), (8,)))
    factor = randn(2, 8, device=device, grad=True)
    out = (factor * x).sum()
    pyptx_ops.fused_add_rms_norm_(x, residual, weight)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.backward()


def test_in_place_in_inference_mode(device):
    normal = [randn(2, 8, device=device) for _ in range(2)]
    with torch.inference_mode():
        weight = randn(8, device=device)
        for x, residual in (normal, [t.clone() for t in normal]):
            wanted = pyptx_ops.fused_add_rms_norm(x, residual, weight)
            pyptx_ops.fused_add_rms_norm_(x, residual, weight)
            assert torch.equal(x, wanted[0]) and torch.equal(residual, wanted[1])
