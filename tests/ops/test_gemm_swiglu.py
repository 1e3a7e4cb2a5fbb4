"""gemm_swiglu and grouped_gemm_swiglu: values on every device and on the simulator, layouts, groups, gradients."""

from __future__ import annotations

import contextlib

import pytest
import torch
import torch.nn.functional as F

import pyptx_ops
from pyptx_ops.dispatch import gemm_swiglu as host
from pyptx_ops.dispatch import operands
from pyptx_ops.ops._swiglu import split
from pyptx_ops.trials.bounds import gemm_swiglu_excess, grouped_gemm_swiglu_excess
from tests.ops.inputs import LAYOUTS, LOW, assert_contiguous, ends, randn, relaid

BF16 = torch.bfloat16
SIZES = [(1, 1, 1), (7, 5, 3), (17, 64, 65), (65, 129, 72), (127, 24, 40), (3, 8, 0), (0, 8, 8), (8, 0, 8)]  # m, d, k


@pytest.fixture(params=["as it is", "kernels"])
def path(request, device):
    """On a GPU the kernels either way; on a CPU the reference, and the kernels simulated."""
    if request.param == "kernels" and device != "cpu":
        pytest.skip("runs them anyway")
    with pyptx_ops.simulate() if request.param == "kernels" else contextlib.nullcontext():
        yield request.param


def truth(a, w13, bias=None, interleaved=False):
    """In fp64, apart from the op's own code."""
    both = a.double() @ w13.double() + (0 if bias is None else bias.double())
    gate, up = (both[..., ::2], both[..., 1::2]) if interleaved else both.chunk(2, -1)
    return F.silu(gate) * up


def check(a, w13, bias=None, interleaved=False):
    got = pyptx_ops.gemm_swiglu(a, w13, bias, interleaved)
    assert got.dtype is a.dtype and got.shape == (*a.shape[:-1], w13.shape[1] // 2)
    assert_contiguous(got)
    rows = a.reshape(-1, a.shape[-1]) if a.numel() else a.flatten(0, -2)
    assert gemm_swiglu_excess(got.flatten(0, -2), rows, w13, bias, interleaved) <= 1


@pytest.mark.parametrize("dtype", LOW)
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("interleaved", [False, True])
def test_sizes(device, path, dtype, size, interleaved):
    m, d, k = size
    a, w13 = randn(m, k, device=device, dtype=dtype), randn(k, 2 * d, device=device, dtype=dtype)
    check(a, w13, None, interleaved)
    check(a, w13.t().contiguous().t(), randn(2 * d, device=device, dtype=dtype), interleaved)


@pytest.mark.parametrize("a_layout", LAYOUTS)
@pytest.mark.parametrize("w_layout", LAYOUTS)
@pytest.mark.parametrize("interleaved", [False, True])
def test_layouts(device, path, a_layout, w_layout, interleaved):
    for k, d in ((72, 64), (33, 37)):
        a, w13 = randn(2, 9, k, device=device, dtype=BF16), randn(k, 2 * d, device=device, dtype=BF16)
        check(relaid(a, a_layout), relaid(w13, w_layout), None, interleaved)


def test_the_bound_holds_for_the_truth_and_not_for_gate_and_up_rounded(device):
    """Sums of 256 + 1 - 256 and 1, of which a rounded gate is 0: then so would the result be."""
    a = torch.tensor([[256.0, 1.0]], device=device, dtype=BF16)
    w13 = torch.tensor([[1.0, 0.0], [1.0, 1.0]], device=device, dtype=BF16)
    bias = torch.tensor([-256.0, 0.0], device=device, dtype=BF16)
    assert gemm_swiglu_excess(truth(a, w13, bias), a, w13, bias) <= 1
    rounded = pyptx_ops.silu_and_mul(pyptx_ops.gemm(a, w13) + bias)
    assert rounded.item() == 0 and gemm_swiglu_excess(rounded, a, w13, bias) > 1
    assert pyptx_ops.gemm_swiglu(a, w13, bias).item() == F.silu(torch.ones(1, dtype=BF16)).item()


@pytest.mark.parametrize("groups", [(5,), (0,), (3, 3, 7), (0, 0, 9), (9, 9, 9), (64, 64, 131)], ids=str)
@pytest.mark.parametrize("interleaved", [False, True])
def test_groups(device, path, groups, interleaved):
    for past, k, d in ((0, 40, 24), (3, 17, 5)):
        a = randn(groups[-1] + past, k, device=device, dtype=BF16)
        a[groups[-1] :] = float("nan")
        w13 = randn(len(groups), 2 * d, k, device=device, dtype=BF16).transpose(1, 2)
        bias = randn(len(groups), 2 * d, device=device, dtype=BF16)
        offs = ends(*groups, device=device)
        for added in (None, bias):
            got = pyptx_ops.grouped_gemm_swiglu(a, w13, offs, added, interleaved)
            assert_contiguous(got)
            assert grouped_gemm_swiglu_excess(got, a, w13, offs, added, interleaved) <= 1


@pytest.mark.parametrize("w_layout", LAYOUTS)
@pytest.mark.parametrize("interleaved", [False, True])
def test_grouped_layouts(device, path, w_layout, interleaved):
    a, w13 = randn(21, 72, device=device, dtype=BF16), randn(3, 72, 48, device=device, dtype=BF16)
    offs = torch.tensor([[4, -1], [4, -1], [17, -1]], dtype=torch.int32, device=device)[:, 0]
    got = pyptx_ops.grouped_gemm_swiglu(relaid(a, "transposed"), relaid(w13, w_layout), offs, None, interleaved)
    assert grouped_gemm_swiglu_excess(got, a, w13, offs, None, interleaved) <= 1


def test_no_depth(device, path):
    bias = randn(3, 8, device=device, dtype=BF16)
    a, w13 = randn(7, 0, device=device, dtype=BF16), randn(3, 0, 8, device=device, dtype=BF16)
    got = pyptx_ops.grouped_gemm_swiglu(a, w13, ends(2, 2, 6, device=device), bias)
    wanted = truth(a.new_zeros(3, 1), w13.new_zeros(1, 8), bias)
    torch.testing.assert_close(got, torch.stack((*wanted[[0, 0, 2, 2, 2, 2]], wanted[0] * 0)).to(BF16))


def test_what_is_read_in_place_is_not_copied(monkeypatch):
    monkeypatch.setattr(host, "padded_copy", lambda tensor: pytest.fail("an operand was copied"))
    a, offs = randn(9, 32, device="cpu", dtype=BF16), ends(4, 9, device="cpu")
    w = randn(2, 48, 32, device="cpu", dtype=BF16)
    with pyptx_ops.simulate(), torch.no_grad():
        for interleaved in (False, True):
            pyptx_ops.gemm_swiglu(a, w[0].t(), None, interleaved)
            pyptx_ops.grouped_gemm_swiglu(a, w.mT, offs, None, interleaved)
        pyptx_ops.gemm_swiglu(a, w[0].t().contiguous())
        pyptx_ops.grouped_gemm_swiglu(a, w.mT.contiguous(), offs)


def test_up_at_an_address_that_no_map_takes_is_copied(monkeypatch):
    """The gate's half begins at a multiple of 16 bytes, and up's does not."""
    copied = []
    monkeypatch.setattr(host, "padded_copy", lambda tensor: copied.append(tensor) or operands.padded_copy(tensor))
    a, w13 = randn(9, 32, device="cpu", dtype=BF16), randn(32, 40, device="cpu", dtype=BF16)[:, :24]
    with pyptx_ops.simulate():
        check(a, w13)
    assert len(copied) == 2


def test_sizes_past_what_kernels_count():
    huge = torch.zeros((), dtype=BF16).expand
    with pyptx_ops.simulate():
        with pytest.raises(ValueError, match=r"^gemm_swiglu: a has shape .*, wanted sizes of at most 2147483647"):
            pyptx_ops.gemm_swiglu(huge(2**16, 2**15, 4), huge(4, 8))
        with pytest.raises(ValueError, match=r"^grouped_gemm_swiglu: w13 has shape .*, wanted sizes of at most"):
            pyptx_ops.grouped_gemm_swiglu(huge(3, 4), huge(1, 4, 2**31), ends(3, device="cpu"))


@pytest.mark.parametrize("interleaved", [False, True])
def test_gradients(device, interleaved):
    a, w13, bias = (randn(*s, device=device, grad=True) for s in ((2, 5, 7), (7, 6), (6,)))
    assert torch.autograd.gradcheck(lambda *t: pyptx_ops.gemm_swiglu(*t, interleaved), (a, w13, bias))
    assert torch.autograd.gradgradcheck(lambda *t: pyptx_ops.gemm_swiglu(*t, interleaved), (a, w13, bias))
    rows, w13, bias = (randn(*s, device=device, grad=True) for s in ((9, 4), (3, 6, 4), (3, 6)))

    def grouped(a, w13, bias):
        offs = ends(3, 3, 7, device=device)
        return pyptx_ops.grouped_gemm_swiglu(a, w13.transpose(1, 2), offs, bias, interleaved)

    assert torch.autograd.gradcheck(grouped, (rows, w13, bias))


def test_gradients_past_the_groups_are_zero(device, path):
    a, w13 = randn(9, 16, device=device, dtype=BF16), randn(3, 16, 16, device=device, dtype=BF16)
    a[7:] = float("nan")
    dy = randn(9, 8, device=device, dtype=BF16)
    a, w13 = a.requires_grad_(), w13.requires_grad_()
    da, dw = torch.autograd.grad(pyptx_ops.grouped_gemm_swiglu(a, w13, ends(3, 3, 7, device=device)), (a, w13), dy)
    assert (da[7:] == 0).all() and (dw[1] == 0).all() and da.isfinite().all() and dw.isfinite().all()


def test_a_recorded_call_is_the_two_ops(device, path):
    """Also through the dispatcher; the result is that of gate and up rounded."""
    a, w13 = randn(9, 16, device=device, dtype=BF16, grad=True), randn(16, 24, device=device, dtype=BF16)
    wanted = pyptx_ops.silu_and_mul(pyptx_ops.gemm(a, w13), True)
    for op in (pyptx_ops.gemm_swiglu, torch.ops.pyptx.gemm_swiglu):
        got = op(a, w13, None, True)
        assert got.requires_grad and torch.equal(got, wanted)
        with torch.no_grad():
            assert not op(a, w13).requires_grad


def test_autocast(device):
    x, w = randn(6, 16, device=device, dtype=torch.float32, grad=True), randn(16, 8, device=device, dtype=BF16)
    with torch.autocast(device, dtype=BF16):
        got = pyptx_ops.gemm_swiglu(x, w)
        with torch.no_grad():
            fused = pyptx_ops.gemm_swiglu(x, w)
    assert got.dtype is fused.dtype is BF16
    assert torch.equal(fused, pyptx_ops.gemm_swiglu(x.detach().bfloat16(), w))
    got.float().sum().backward()
    assert x.grad.dtype is torch.float32


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_wide_dtypes(device, dtype):
    a, w13, bias = (randn(*s, device=device, dtype=dtype) for s in ((9, 7), (7, 10), (10,)))
    torch.testing.assert_close(pyptx_ops.gemm_swiglu(a, w13, bias), truth(a, w13, bias).to(dtype))
    gate, up = split(a @ w13, True)
    torch.testing.assert_close(pyptx_ops.gemm_swiglu(a, w13, None, True), F.silu(gate) * up)
