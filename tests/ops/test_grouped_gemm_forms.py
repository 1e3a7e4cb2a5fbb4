"""The forms of grouped_gemm besides rows in groups, on every device and on the simulator."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
import torch

import pyptx_ops
from pyptx_ops.dispatch import gemm as kernels
from pyptx_ops.trials import poisoned
from pyptx_ops.trials.bounds import grouped_excess, product_excess, ragged_k_excess
from tests.ops.inputs import LAYOUTS, LOW, assert_contiguous, ends, randn, relaid

GROUPS = [(5,), (0,), (3, 3, 7), (0, 0, 0), (0, 0, 9), (9, 9, 9), (1, 2, 3, 4), (64, 64, 191, 192), (127, 256)]


def check_ragged_k(a, b, offs, bias=None, out_dtype=None):
    with poisoned():
        got = pyptx_ops.grouped_gemm(a, b, offs, bias, out_dtype=out_dtype)
    assert got.dtype is (out_dtype or a.dtype)
    assert_contiguous(got)
    assert ragged_k_excess(got, a, b, offs, bias) <= 1


def operands(groups, past, m, n, device, dtype):
    """(M, K) and (K, N) with NaN past the last group."""
    depth = max(groups) + past
    a, b = randn(m, depth, device=device, dtype=dtype), randn(depth, n, device=device, dtype=dtype)
    a[:, groups[-1] :] = b[groups[-1] :] = float("nan")
    return a, b


@pytest.fixture(params=["device", "simulator"])
def place(request, device):
    """Where a call runs: on the device, or its kernel on the simulator."""
    if request.param == "device":
        yield device
    elif device != "cpu":
        pytest.skip("the simulator takes CPU tensors")
    else:
        with pyptx_ops.simulate():
            yield device


@pytest.mark.parametrize("dtype", LOW)
@pytest.mark.parametrize("groups", GROUPS, ids=str)
@pytest.mark.parametrize("past", [0, 3])
def test_groups_along_k(place, dtype, groups, past):
    a, b = operands(groups, past, 24, 40, place, dtype)
    bias = randn(len(groups), 40, device=place, dtype=dtype)
    check_ragged_k(a.t().contiguous().t(), b, ends(*groups, device=place), bias)
    check_ragged_k(a, b, ends(*groups, device=place), out_dtype=torch.float32)


@pytest.mark.parametrize("size", [(1, 1), (3, 5), (0, 64), (64, 0), (129, 65), (127, 257)], ids=str)
def test_sizes_with_groups_along_k(place, size):
    a, b = operands((4, 4, 17), 2, *size, place, torch.bfloat16)
    check_ragged_k(a, b, ends(4, 4, 17, device=place), randn(3, size[1], device=place, dtype=torch.bfloat16))


@pytest.mark.parametrize("a_layout", LAYOUTS)
@pytest.mark.parametrize("b_layout", LAYOUTS)
def test_layouts_with_groups_along_k(place, a_layout, b_layout):
    a, b = operands((4, 4, 67), 5, 48, 72, place, torch.bfloat16)
    check_ragged_k(relaid(a, a_layout), relaid(b, b_layout), ends(4, 4, 67, device=place))


def test_no_k_at_all(place):
    a, b = randn(5, 0, device=place, dtype=torch.bfloat16), randn(0, 3, device=place, dtype=torch.bfloat16)
    check_ragged_k(a, b, ends(0, 0, device=place))
    check_ragged_k(a, b, ends(0, 0, device=place), randn(2, 3, device=place, dtype=torch.bfloat16))


def test_many_groups_along_k(place):
    offs = torch.randint(0, 3, (1100,)).cumsum(0).to(place, torch.int32)
    a, b = operands(offs.tolist(), 5, 8, 16, place, torch.bfloat16)
    check_ragged_k(a, b, offs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_wide_dtypes_with_groups_along_k(device, dtype):
    a, b = operands((2, 2, 8), 1, 7, 5, device, dtype)
    bias = randn(3, 5, device=device, dtype=dtype)
    got = pyptx_ops.grouped_gemm(a, b, ends(2, 2, 8, device=device), bias)
    wanted = torch.stack([a[:, s:e] @ b[s:e] + bias[g] for g, (s, e) in enumerate(((0, 2), (2, 2), (2, 8)))])
    torch.testing.assert_close(got, wanted)


@pytest.mark.parametrize("groups", [(3, 3, 7), (0, 4, 4), (0, 0, 0), (9, 9, 9)], ids=str)
def test_gradients_with_groups_along_k(device, groups):
    a, b = randn(4, 9, device=device, grad=True), randn(9, 5, device=device, grad=True)
    bias = randn(3, 5, device=device, grad=True)

    def op(a, b, bias):
        return pyptx_ops.grouped_gemm(a, b, ends(*groups, device=device), bias)

    assert torch.autograd.gradcheck(op, (a, b, bias))
    assert torch.autograd.gradgradcheck(op, (a, b, bias))


def check_columns(a, b, offs, bias=None, out_dtype=None):
    with poisoned():
        got = pyptx_ops.grouped_gemm(a, b, offs, bias, out_dtype=out_dtype)
    assert got.dtype is (out_dtype or a.dtype)
    assert_contiguous(got)
    assert grouped_excess(got.t(), b.t(), a.transpose(1, 2), offs, bias) <= 1


def check_batch(a, b, bias=None, out_dtype=None):
    with poisoned():
        got = pyptx_ops.grouped_gemm(a, b, None, bias, out_dtype=out_dtype)
    assert got.dtype is (out_dtype or a.dtype) and got.shape == (a.shape[0], a.shape[1], b.shape[2])
    assert_contiguous(got)
    for group, out in enumerate(got):
        assert product_excess(out, a[group], b[group], None if bias is None else bias[group]) <= 1


@pytest.mark.parametrize("dtype", LOW)
@pytest.mark.parametrize("groups", GROUPS, ids=str)
@pytest.mark.parametrize("size", [(24, 40), (1, 1), (129, 65)], ids=str)
def test_groups_of_columns(place, dtype, groups, size):
    m, k = size
    a, b = randn(len(groups), m, k, device=place, dtype=dtype), randn(k, max(groups) + 3, device=place, dtype=dtype)
    b[:, groups[-1] :] = float("nan")
    check_columns(a, b, ends(*groups, device=place), randn(len(groups), m, device=place, dtype=dtype))
    check_columns(a, b, ends(*groups, device=place), out_dtype=torch.float32)


@pytest.mark.parametrize(
    "size", [(1, 1, 1, 1), (3, 5, 7, 9), (2, 129, 65, 40), (0, 2, 3, 4), (3, 0, 8, 8), (3, 8, 0, 8)]
)
def test_matrices_in_pairs(place, size):
    g, m, k, n = size
    a, b = (randn(*s, device=place, dtype=torch.bfloat16) for s in ((g, m, k), (g, k, n)))
    check_batch(a, b, randn(g, n, device=place, dtype=torch.bfloat16))
    check_batch(a, b, out_dtype=torch.float32)


@pytest.mark.parametrize("a_layout", LAYOUTS)
@pytest.mark.parametrize("b_layout", LAYOUTS)
def test_layouts_of_the_other_forms(place, a_layout, b_layout):
    a, b = (randn(*s, device=place, dtype=torch.bfloat16) for s in ((3, 16, 72), (3, 72, 24)))
    check_batch(relaid(a, a_layout), relaid(b, b_layout))
    check_columns(relaid(a, a_layout), relaid(b[0], b_layout), ends(4, 4, 23, device=place))


@pytest.mark.parametrize("groups", [(3, 3, 7), (0, 0, 0), (9, 9, 9)], ids=str)
def test_gradients_of_the_other_forms(device, groups):
    a, bias = randn(3, 4, 6, device=device, grad=True), randn(3, 4, device=device, grad=True)
    b, matrices = randn(6, 9, device=device, grad=True), randn(3, 6, 4, device=device, grad=True)

    def columns(a, b, bias):
        return pyptx_ops.grouped_gemm(a, b, ends(*groups, device=device), bias)

    assert torch.autograd.gradcheck(columns, (a, b, bias))
    assert torch.autograd.gradgradcheck(columns, (a, b, bias))
    assert torch.autograd.gradcheck(lambda *t: pyptx_ops.grouped_gemm(t[0], t[1], None, t[2]), (a, matrices, bias))


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_compiled_forms(device):
    """Gradients included, for several sizes of what is ragged."""

    def forms(a, b, rows, matrices, offs):
        columns = pyptx_ops.grouped_gemm(a, b, offs)
        return (
            columns.sum()
            + pyptx_ops.grouped_gemm(rows.t(), rows, offs).sum()
            + pyptx_ops.grouped_gemm(matrices, a).sum()
        )

    compiled = torch.compile(forms, backend="aot_eager", fullgraph=True, dynamic=True)
    for size in (9, 14):
        shapes = (3, 4, 6), (6, size), (size, 5), (3, 4, 4)
        leaves = [randn(*shape, device=device, dtype=torch.float32, grad=True) for shape in shapes]
        offs = ends(2, 2, size - 1, device=device)
        got, wanted = compiled(*leaves, offs), forms(*leaves, offs)
        torch.testing.assert_close(torch.autograd.grad(got, leaves), torch.autograd.grad(wanted, leaves))


def test_operands_of_the_backward_are_read_in_place():
    """Both gradients of both forms run on kernels, and no operand is copied."""
    x, w = randn(70, 64, device="cpu", dtype=torch.bfloat16), randn(3, 64, 40, device="cpu", dtype=torch.bfloat16)
    dy, offs = randn(70, 40, device="cpu", dtype=torch.bfloat16), ends(9, 9, 66, device="cpu")
    dw = randn(3, 64, 40, device="cpu", dtype=torch.bfloat16)
    for a, b, gradient in ((x, w, dy), (x.t(), dy, dw)):
        a, b = a.detach().requires_grad_(), b.detach().requires_grad_()
        with pyptx_ops.simulate() as launcher, no_copies():
            pyptx_ops.grouped_gemm(a, b, offs).backward(gradient)
        assert sum(launcher.launches.values()) == 3
        wide = [t.detach().double().requires_grad_() for t in (a, b)]
        pyptx_ops.grouped_gemm(*wide, offs).backward(gradient.double())
        for got, wanted in zip((a, b), wide, strict=True):
            assert torch.allclose(got.grad.double(), wanted.grad, atol=0.05, rtol=0.02)


@contextmanager
def no_copies():
    """Fails where the host copies an operand."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "padded_copy", lambda tensor: pytest.fail("an operand was copied"))
        yield
